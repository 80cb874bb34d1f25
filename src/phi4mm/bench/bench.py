"""All measurements of a bundle on this machine, and what explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phi4mm.api import Phi4MM
from phi4mm.bench.answer import cases, measure_answers, measure_encoders, n_encoder_measures
from phi4mm.bench.decoder import Sizes, measure_decoder, n_decoder_measures
from phi4mm.bench.footprint import Footprint, measure_footprint
from phi4mm.bench.measure import Measure, Runs
from phi4mm.bench.peak import Peak
from phi4mm.bench.work import file_bytes, generation_work, kv_bytes, prefill_work
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.measurement.workload import Workload
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.abort import AbortFlag
from phi4mm.progress import Progress, counter

_CLIP_S = 10.0
Notify = Callable[[Measure], None]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What was measured.

    Attributes:
        peak: of this machine; None where an accelerator computes.
        footprint: load time and memory of a fresh process.
        measures: in the order they were made.
        skipped: what could not be measured, and why.
    """

    peak: Peak | None
    footprint: Footprint
    measures: tuple[Measure, ...]
    skipped: tuple[str, ...]


def run_bench(
    model: Phi4MM,
    params: EngineParams,
    sizes: Sizes,
    peak: Peak | None,
    abort_flag: AbortFlag,
    notify: Notify,
    progress: Progress | None,
) -> BenchReport:
    """Measure a bundle.

    Args:
        model: opened, not loaded.
        params: what it was opened with.
        sizes: how much.
        peak: of this machine.
        abort_flag: stops what computes with ``Cancelled`` while it is set; requests of the model
            stop by its own ``cancel``.
        notify: told of each measure when it is made.
        progress: told of every run.

    Raises:
        InputError: a prompt length is beyond what the model was trained for.
    """
    bundle = model.bundle
    n_ctx_train = bundle.decoder.hparams.n_ctx_train
    if max(sizes.n_prompt, sizes.n_generated) > n_ctx_train:
        raise InputError(f"-p and -n must be at most {n_ctx_train} for this model")
    advance = counter(_n_runs(bundle, sizes), progress)
    runs = Runs(sizes.n_runs, lambda: advance(1))
    footprint = measure_footprint(bundle, params, typical_workload(bundle))
    advance(1)
    skipped: list[str] = []
    measures: list[Measure] = []
    for source in (
        measure_decoder(bundle, params, sizes, runs, peak, abort_flag),
        measure_encoders(model, runs, peak),
        measure_answers(model, params, runs, peak, skipped.append),
    ):
        for measure in source:
            measures.append(measure)
            notify(measure)
    return BenchReport(peak, footprint, tuple(measures), tuple(skipped))


def _n_runs(bundle: Bundle, sizes: Sizes) -> int:
    """Runs of everything: the fresh process, then each measure's with its warm-up."""
    n_measures = n_decoder_measures(bundle) + n_encoder_measures(bundle) + len(cases(bundle))
    return 1 + n_measures * (sizes.n_runs + 1)


def typical_workload(bundle: Bundle) -> Workload:
    """A text, a picture of one crop, ten seconds of sound: what of these the bundle can take."""
    has_vision = bundle.vision is not None and "vision" in bundle.adapters
    has_sound = bundle.audio is not None and "speech" in bundle.adapters
    side = bundle.vision.image_size if bundle.vision is not None else 0
    return Workload(
        words=(min(256, bundle.decoder.hparams.n_ctx_orig // 4),),
        picture=(side, side) if has_vision else None,
        clip_s=_CLIP_S if has_sound else None,
    )


def physics(bundle: Bundle, params: EngineParams, sizes: Sizes, peak: Peak) -> str:
    """What bounds each number, with this bundle's and this machine's own figures."""
    decoder, h = bundle.decoder, bundle.decoder.hparams
    weights = file_bytes(decoder.file)
    flops = prefill_work(decoder, None, sizes.n_prompt, params.n_batch).flops / sizes.n_prompt
    generation = generation_work(decoder, None, sizes.n_generated)
    cached = kv_bytes(h, 1, params.type_k, params.type_v)
    return "\n".join([
        f"This machine reads {peak.bytes_per_s / 1e9:.1f} GB/s from memory and multiplies "
        f"float32 matrices at {peak.flops / 1e9:.0f} GFLOP/s (both measured now, all cores).",
        f"A generated token reads every weight once, {weights / 1e9:.3g} GB, and "
        f"{cached / 1024:.3g} KiB for each position before it: at most "
        f"{sizes.n_generated / peak.least_s(generation):.3g} tokens a second.",
        f"A prompt's token takes {flops / 1e9:.3g} GFLOP, and its weights are read once for "
        f"{params.n_batch} tokens: at most {peak.flops / flops:.3g} tokens a second in float32. "
        "Kernels that multiply 8-bit integers can pass this limit.",
    ])  # fmt: skip
