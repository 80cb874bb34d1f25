"""The rows of one decode, checked and laid out as libllama reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phi4mm.errors import NativeError

Inputs = NDArray[np.int32] | NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens or embeddings, each with its position and its sequence.

    The rows of a sequence are in order, and continue the positions that the cache holds for it.

    Attributes:
        inputs: token ids, (n_rows,) int32, or embeddings, (n_rows, n_embd) float32.
        positions: the place of each row in its sequence, (n_rows,) int32, from 0.
        seq_ids: the sequence of each row, (n_rows,) int32.
        wants_logits: whether each row's logits are computed, (n_rows,) bool.
    """

    inputs: Inputs
    positions: NDArray[np.int32]
    seq_ids: NDArray[np.int32]
    wants_logits: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Refuse other shapes and types: C would read the arrays as they lie in memory."""
        kind = f"{self.inputs.dtype.name} of {self.inputs.ndim} dimensions"
        if kind not in ("int32 of 1 dimensions", "float32 of 2 dimensions"):
            raise _refused(f"inputs are {kind}, expected int32 (n_rows,) or float32 (n_rows, n)")
        if self.n_rows == 0:
            raise _refused("there are no rows")
        for name, dtype in (("positions", "int32"), ("seq_ids", "int32"), ("wants_logits", "bool")):
            array = getattr(self, name)
            if array.shape != (self.n_rows,) or array.dtype.name != dtype:
                found = f"{array.dtype.name} {array.shape}"
                raise _refused(f"{name} are {found}, expected {dtype} ({self.n_rows},)")
        if self.positions.min() < 0:
            raise _refused(f"position {self.positions.min()} is negative")

    @classmethod
    def of_sequence(
        cls,
        inputs: Inputs,
        *,
        start: int = 0,
        seq_id: int = 0,
        logits: Literal["none", "last", "all"] = "last",
    ) -> Batch:
        """Rows of one sequence that follow each other from position ``start`` on."""
        n_rows = len(inputs)
        wants_logits = np.full(n_rows, logits == "all")
        wants_logits[-1:] = logits != "none"
        return cls(
            inputs=inputs,
            positions=np.arange(start, start + n_rows, dtype=np.int32),
            seq_ids=np.full(n_rows, seq_id, np.int32),
            wants_logits=wants_logits,
        )

    @property
    def n_rows(self) -> int:
        """How many rows are computed."""
        return len(self.inputs)

    @property
    def n_outputs(self) -> int:
        """How many rows want logits."""
        return int(np.count_nonzero(self.wants_logits))

    @property
    def width(self) -> int | None:
        """Width of the embeddings; None for tokens."""
        return None if self.inputs.ndim == 1 else self.inputs.shape[1]

    def starts(self) -> dict[int, int]:
        """The first position of each sequence in the batch."""
        return {
            int(seq_id): int(self.positions[self.seq_ids == seq_id].min())
            for seq_id in np.unique(self.seq_ids)
        }

    def native(self, ffi: Any) -> tuple[Any, tuple[Any, ...]]:
        """A ``llama_batch``, and the arrays it points into: keep them until the call returns."""
        inputs = np.ascontiguousarray(self.inputs)
        positions = np.ascontiguousarray(self.positions)
        seq_ids = np.ascontiguousarray(self.seq_ids)
        wants_logits = self.wants_logits.astype(np.int8)
        n_seq_id = np.ones(self.n_rows, np.int32)
        # One pointer for each row, to its only sequence id.
        offsets = np.arange(self.n_rows, dtype=np.uintp) * np.uintp(seq_ids.itemsize)
        seq_id_pointers = offsets + np.uintp(seq_ids.ctypes.data)

        batch = ffi.new("struct llama_batch *")
        batch.n_tokens = self.n_rows
        if self.width is None:
            batch.token = ffi.from_buffer("llama_token[]", inputs)
        else:
            batch.embd = ffi.from_buffer("float[]", inputs)
        batch.pos = ffi.from_buffer("llama_pos[]", positions)
        batch.n_seq_id = ffi.from_buffer("int32_t[]", n_seq_id)
        batch.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(seq_id_pointers))
        batch.logits = ffi.from_buffer("int8_t[]", wants_logits)
        return batch[0], (
            batch,
            inputs,
            positions,
            seq_ids,
            seq_id_pointers,
            n_seq_id,
            wants_logits,
        )


def _refused(detail: str) -> NativeError:
    return NativeError("llama_decode", detail=detail)
