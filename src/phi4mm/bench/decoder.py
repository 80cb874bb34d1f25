"""Prefill and generation of the decoder alone, as llama-bench does them: random tokens, no text.

Source: ``test_prompt`` and ``test_gen`` in llama-bench.cpp of llama.cpp 0c1e570.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from phi4mm.bench.measure import Measure, timed
from phi4mm.bench.peak import Peak, least_s
from phi4mm.bench.work import generation_work, prefill_work
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile.bundle import Bundle
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


def measure_decoder(
    bundle: Bundle, params: EngineParams, sizes: Sizes, peak: Peak | None
) -> Iterator[Measure]:
    """Pp and tg, without an adapter and with each.

    Args:
        bundle: the files.
        params: threads, layers on an accelerator, cache types, batch size.
        sizes: how many tokens, and how often.
        peak: of the machine that computes; None where it is not known.
    """
    names: list[AdapterName | None] = [None, *bundle.adapters]
    with Model(bundle.decoder.path, n_gpu_layers=params.n_gpu_layers) as model:
        for name in names:
            runner = _Runner(model, bundle, name, params, max(sizes.n_prompt, sizes.n_generated))
            with runner.context:
                yield from _measure(runner, bundle, name, sizes, peak)


def _measure(
    runner: _Runner, bundle: Bundle, name: AdapterName | None, sizes: Sizes, peak: Peak | None
) -> Iterator[Measure]:
    label = "" if name is None else f" {name}"
    adapter = None if name is None else bundle.adapters[name]
    works = {
        "pp": prefill_work(bundle.decoder, adapter, sizes.n_prompt, runner.n_batch),
        "tg": generation_work(bundle.decoder, adapter, sizes.n_generated),
    }
    runs = {"pp": runner.prefill, "tg": runner.generate}
    for test, n_tokens in (("pp", sizes.n_prompt), ("tg", sizes.n_generated)):
        seconds = timed(partial(runs[test], n_tokens), sizes.n_runs)
        least = least_s(peak, works[test])
        yield Measure.of_seconds(
            f"{test}{n_tokens}{label}", seconds, least, unit="tok/s", per=n_tokens
        )


class _Runner:
    """A context with an adapter, and random tokens for it."""

    def __init__(
        self,
        model: Model,
        bundle: Bundle,
        name: AdapterName | None,
        params: EngineParams,
        n_ctx: int,
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
        )
        if name is not None:
            adapter = Adapter(model, bundle.adapters[name].path)
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
