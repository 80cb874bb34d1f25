"""Prefill and generation of the decoder alone, as llama-bench does them: random tokens, no text.

Source: ``test_prompt`` and ``test_gen`` in llama-bench.cpp of llama.cpp 0c1e570.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from phi4mm.bench.measure import Measure, Runs, timed
from phi4mm.bench.peak import Peak, least_s
from phi4mm.bench.work import generation_work, prefill_work
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.part import AdapterPart
from phi4mm.native.abort import AbortFlag
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Adapter, Context, Model
from phi4mm.native.params import ContextParams


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to measure.

    Attributes:
        n_prompt: tokens of a prefill.
        n_generated: tokens of a generation.
        n_runs: runs of each, after one that does not count.
    """

    n_prompt: int = 512
    n_generated: int = 128
    n_runs: int = 3

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        for flag, value in (("-p", self.n_prompt), ("-n", self.n_generated), ("-r", self.n_runs)):
            if value < 1:
                raise InputError(f"{flag} is {value}, must be at least 1")


def n_decoder_measures(bundle: Bundle) -> int:
    """How many measures ``measure_decoder`` makes."""
    return 2 * (1 + len(bundle.adapters))


def measure_decoder(
    bundle: Bundle,
    params: EngineParams,
    sizes: Sizes,
    runs: Runs,
    peak: Peak | None,
    abort_flag: AbortFlag,
) -> Iterator[Measure]:
    """Pp and tg, without an adapter and with each.

    Args:
        bundle: the files.
        params: threads, layers on an accelerator, cache types, batch size.
        sizes: how many tokens.
        runs: how often.
        peak: of the machine that computes; None where it is not known.
        abort_flag: stops a run with ``Cancelled`` while it is set.
    """
    names: list[AdapterName | None] = [None, *bundle.adapters]
    with Model(bundle.decoder.path, offload=params.offload) as model:
        for name in names:
            part = None if name is None else bundle.adapters[name]
            n_ctx = max(sizes.n_prompt, sizes.n_generated)
            runner = _Runner(model, part, params, n_ctx, abort_flag)
            with runner.context:
                yield from _measure(runner, bundle, name, sizes, runs, peak)


def _measure(
    runner: _Runner,
    bundle: Bundle,
    name: AdapterName | None,
    sizes: Sizes,
    runs: Runs,
    peak: Peak | None,
) -> Iterator[Measure]:
    label = "" if name is None else f" {name}"
    adapter = None if name is None else bundle.adapters[name]
    works = {
        "pp": prefill_work(bundle.decoder, adapter, sizes.n_prompt, runner.n_batch),
        "tg": generation_work(bundle.decoder, adapter, sizes.n_generated),
    }
    computes = {"pp": runner.prefill, "tg": runner.generate}
    for test, n_tokens in (("pp", sizes.n_prompt), ("tg", sizes.n_generated)):
        seconds = timed(partial(computes[test], n_tokens), runs)
        least = least_s(peak, works[test])
        yield Measure.of_seconds(
            f"{test}{n_tokens}{label}", seconds, least, unit="tok/s", per=n_tokens
        )


class _Runner:
    """A context with an adapter, and random tokens for it."""

    def __init__(
        self,
        model: Model,
        part: AdapterPart | None,
        params: EngineParams,
        n_ctx: int,
        abort_flag: AbortFlag,
    ) -> None:
        n_batch = min(params.n_batch, n_ctx)
        self.n_batch = n_batch
        self._n_vocab = model.n_vocab
        self.context = Context(
            model,
            ContextParams(
                n_ctx_seq=n_ctx,
                n_threads=params.threads,
                n_threads_batch=params.threads,
                n_batch=n_batch,
                n_ubatch=n_batch,
                type_k=params.type_k,
                type_v=params.type_v,
                flash_attn=params.flash_attention,
            ),
            abort_flag,
        )
        if part is not None:
            adapter = Adapter(model, part.path)
            self.context.set_adapters([(adapter, 1.0)])
            adapter.close()  # freed with the context

    def prefill(self, n_tokens: int, seed: int) -> None:
        """Compute a prompt, with logits after its last token."""
        ids = self._ids(n_tokens, seed)
        self.context.kv_remove(0)
        for start in range(0, n_tokens, self.n_batch):
            piece = ids[start : start + self.n_batch]
            is_last = start + len(piece) == n_tokens
            self.context.decode(
                Batch.of_sequence(piece, start=start, logits="last" if is_last else "none")
            )
        self.context.synchronize()

    def generate(self, n_tokens: int, seed: int) -> None:
        """Compute token after token, with logits after each."""
        ids = self._ids(n_tokens, seed)
        self.context.kv_remove(0)
        for position in range(n_tokens):
            self.context.decode(
                Batch.of_sequence(ids[position : position + 1], start=position, logits="last")
            )
            self.context.synchronize()

    def _ids(self, n_tokens: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.random.default_rng(seed).integers(0, self._n_vocab, n_tokens, np.int32)
