"""The decoder in libllama: one model, its adapters, and a slot in each of its contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal

import numpy as np
import numpy.typing as npt

from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.abort import AbortFlag
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Adapter, Context, Model
from phi4mm.native.params import ContextParams

Ids = npt.NDArray[np.int32]  # (n,)
Rows = npt.NDArray[np.float32]  # (n, n_embd) embeddings or (n, n_vocab) logits
# Rows of logits that one step may return: a row of the real vocabulary is 800 kB.
_MAX_LOGIT_ROWS = 32


class Slot:
    """A sequence's place in one context: fills it, extends it, reads its logits."""

    def __init__(self, context: Context, seq_id: int, n_batch: int) -> None:
        self._context = context
        self._seq_id = seq_id
        self._n_batch = n_batch

    @property
    def n_past(self) -> int:
        """Positions that are filled."""
        return self._context.kv_length(self._seq_id)

    def clear(self) -> None:
        """Forget everything computed."""
        self._context.kv_remove(self._seq_id)

    def set_adapter(self, adapter: Adapter | None) -> None:
        """Use this adapter from now on.  What was computed under another one must be cleared."""
        self._context.set_adapters([(adapter, 1.0)] if adapter is not None else [])

    def prefill(self, inputs: Sequence[Ids | Rows]) -> Rows:
        """Append ids and embeddings in order; logits ``(1, n_vocab)`` after the last of them."""
        batches = list(_batches(inputs, self._n_batch))
        for batch in batches[:-1]:
            self._decode(batch, "none")
        self._decode(batches[-1], "last")
        return self._context.logits([len(batches[-1]) - 1])

    def logits(self, inputs: Sequence[Ids | Rows]) -> Rows:
        """Append inputs; logits ``(n_tokens, n_vocab)`` after every one of them."""
        rows = []
        for batch in _batches(inputs, min(self._n_batch, _MAX_LOGIT_ROWS)):
            self._decode(batch, "all")
            rows.append(self._context.logits(range(len(batch))))
        return np.concatenate(rows)

    def _decode(self, inputs: Ids | Rows, logits: Literal["none", "last", "all"]) -> None:
        self._context.decode(
            Batch.of_sequence(inputs, start=self.n_past, seq_id=self._seq_id, logits=logits)
        )


def _batches(inputs: Sequence[Ids | Rows], size: int) -> Iterator[Ids | Rows]:
    """Cut inputs into steps: one kind each, at most ``size`` positions."""
    for span in inputs:
        for start in range(0, len(span), size):
            yield span[start : start + size]


class Decoder:
    """Owns the model, the adapters and both contexts; closes them in a safe order.

    Attributes:
        short: the slot with the short RoPE factors.
        long: the slot with the long ones, or None where no sequence can get that long.
    """

    def __init__(
        self, bundle: Bundle, params: EngineParams, plan: ContextPlan, abort_flag: AbortFlag
    ) -> None:
        """Load the model and allocate everything a request can need.

        Args:
            bundle: the files.
            params: threads, types and batch size.
            plan: context sizes.
            abort_flag: stops a step with ``Cancelled`` while it is set.

        Raises:
            NativeError: the native library refuses a file or lacks the memory.
        """
        self._abort_flag = abort_flag
        self._merged_adapter = bundle.decoder.hparams.merged_adapter
        with ExitStack() as stack:
            self._model = stack.enter_context(
                Model(bundle.decoder.path, n_gpu_layers=params.n_gpu_layers)
            )
            self._adapters = {
                name: stack.enter_context(Adapter(self._model, part.path))
                for name, part in bundle.adapters.items()
            }
            self.short = self._slot(stack, params, plan.n_short)
            self.long = None if plan.n_long is None else self._slot(stack, params, plan.n_long)
            self._stack = stack.pop_all()

    def _slot(self, stack: ExitStack, params: EngineParams, n_ctx: int) -> Slot:
        n_batch = min(params.n_batch, n_ctx)
        context_params = ContextParams(
            n_ctx_seq=n_ctx,
            n_threads=params.threads,
            n_threads_batch=params.threads,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_outputs_max=min(n_batch, _MAX_LOGIT_ROWS),
            type_k=params.type_k,
            type_v=params.type_v,
            flash_attn=params.flash_attention,
        )
        context = stack.enter_context(Context(self._model, context_params, self._abort_flag))
        return Slot(context, 0, n_batch)

    def adapter(self, name: AdapterName | None) -> Adapter | None:
        """The loaded adapter of this name; None for the bare base or where it is merged.

        Raises:
            InputError: the bundle does not have this adapter.
        """
        if name is None or name == self._merged_adapter:
            return None
        try:
            return self._adapters[name]
        except KeyError:
            raise InputError(f"this bundle has no {name} adapter") from None

    def close(self) -> None:
        """Free contexts, adapters and model.  Closing twice does nothing."""
        self._stack.close()
