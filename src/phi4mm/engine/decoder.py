"""The decoder in libllama: one model, its adapters, and the slots of its contexts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.parameters import EngineParams
from phi4mm.engine.slot import MAX_LOGIT_ROWS
from phi4mm.engine.slot_pool import SlotPool
from phi4mm.errors import InputError, ModelFileError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.abort import AbortFlag
from phi4mm.native.llama import Adapter, Context, Model
from phi4mm.native.params import ContextParams


def context_params(params: EngineParams, n_ctx: int, n_slots: int) -> ContextParams:
    """What a context is made with: ``n_slots`` sequences of ``n_ctx`` positions each."""
    n_batch = min(max(params.n_batch, n_slots), n_ctx * n_slots)
    return ContextParams(
        n_ctx_seq=n_ctx,
        n_seq_max=n_slots,
        n_threads=params.threads,
        n_threads_batch=params.threads,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_outputs_max=max(n_slots, min(n_batch, MAX_LOGIT_ROWS)),
        type_k=params.type_k,
        type_v=params.type_v,
        flash_attn=params.flash_attention,
    )


def require_numbers(path: Path, values: npt.NDArray[np.float32]) -> None:
    """Refuse what the weights of a damaged file compute.

    Raises:
        ModelFileError: a value is NaN or infinite; it names the file at ``path``.
    """
    if not np.isfinite(values).all():
        raise ModelFileError(
            f"{path}: computes NaN or infinite logits: some weights are damaged; convert it again"
        )


class Decoder:
    """Owns the model, the adapters and both contexts; closes them in a safe order.

    Attributes:
        path: the decoder's file.
        short: the slots with the short RoPE factors.
        long: the slots with the long ones, or None where no sequence can get that long.
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
        self.path = bundle.decoder.path
        self._abort_flag = abort_flag
        self._merged_adapter = bundle.decoder.hparams.merged_adapter
        with ExitStack() as stack:
            self._model = stack.enter_context(Model(self.path, offload=params.offload))
            self._adapters = {
                name: stack.enter_context(Adapter(self._model, part.path))
                for name, part in bundle.adapters.items()
            }
            self.short = self._pool(stack, params, plan.n_short, params.n_slots)
            self.long = (
                None
                if plan.n_long is None
                else self._pool(stack, params, plan.n_long, params.n_long_slots)
            )
            self._stack = stack.pop_all()

    def _pool(self, stack: ExitStack, params: EngineParams, n_ctx: int, n_slots: int) -> SlotPool:
        made_with = context_params(params, n_ctx, n_slots)
        return SlotPool(stack.enter_context(Context(self._model, made_with, self._abort_flag)))

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
