"""The element types a part can be converted to, and how a type meets a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from phi4mm.convert.encode import Encode, encode_rows
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.tensors import TensorSpec, TensorTable

# name -> type, and llama.cpp's number for a file that is mostly of it
TYPES: Final[dict[str, GGMLType]] = {
    "f32": GGMLType.F32,
    "f16": GGMLType.F16,
    "bf16": GGMLType.BF16,
    "q8_0": GGMLType.Q8_0,
}
FILE_TYPES: Final[dict[GGMLType, int]] = {
    GGMLType.F32: 0,
    GGMLType.F16: 1,
    GGMLType.Q8_0: 7,
    GGMLType.BF16: 32,
}

# For rows that 256 does not divide, the type of blocks of 32 that is
# at least as exact.  Source: tensor_type_fallback in llama-quant.cpp of llama.cpp 0c1e570.
NEAREST_TYPES: Final[dict[GGMLType, GGMLType]] = {
    GGMLType.Q2_K: GGMLType.Q4_0,
    GGMLType.Q3_K: GGMLType.Q4_0,
    GGMLType.IQ4_XS: GGMLType.IQ4_NL,
    GGMLType.Q4_K: GGMLType.Q5_0,
    GGMLType.Q5_K: GGMLType.Q5_1,
    GGMLType.Q6_K: GGMLType.Q8_0,
}


@dataclass(frozen=True, slots=True)
class StoredAs:
    """How one tensor is stored.

    Attributes:
        ggml_type: its element type.
        shape: its shape in the file.
        note: what was done because the type's block does not divide its rows; empty if it does.
    """

    ggml_type: GGMLType
    shape: tuple[int, ...]
    note: str = ""


def stored_as(spec: TensorSpec, part_type: GGMLType) -> StoredAs:
    """How a tensor is stored in a part of this type.

    Rows that the block does not divide are padded with zero columns where the graph allows for
    that, and else make the tensor the nearest type that fits them: docs/gguf.md, "Types".
    """
    if spec.kind == "f32":
        return StoredAs(GGMLType.F32, spec.shape)
    *rows, n = spec.shape
    padded = part_type.padded(n)
    if padded == n:
        return StoredAs(part_type, spec.shape)
    if spec.may_pad:
        note = f"rows of {n} padded with zeros to {padded} for {part_type.name}"
        return StoredAs(part_type, (*rows, padded), note)
    nearest = NEAREST_TYPES.get(part_type, GGMLType.F16)
    fitting = nearest if n % nearest.block_size == 0 else GGMLType.F16
    note = f"rows of {n} stored as {fitting.name}, not {part_type.name}"
    return StoredAs(fitting, spec.shape, note)


class PartFormat(Protocol):
    """How the tensors of a part are stored: in one element type, or by a recipe of several."""

    @property
    def name(self) -> str:
        """As files are named after it, ``Q8_0``."""

    @property
    def file_type(self) -> int:
        """llama.cpp's number for such a file."""

    def stored(self, table: TensorTable) -> dict[str, StoredAs]:
        """How each tensor of a part is stored."""

    def encode(self) -> Encode:
        """What makes the bytes of a tensor."""


@dataclass(frozen=True, slots=True)
class OneType:
    """All matrices of a part in one element type; a ``PartFormat``."""

    ggml_type: GGMLType

    @property
    def name(self) -> str:
        """The type's name."""
        return self.ggml_type.name

    @property
    def file_type(self) -> int:
        """llama.cpp's number for a file that is mostly of it."""
        return FILE_TYPES[self.ggml_type]

    def stored(self, table: TensorTable) -> dict[str, StoredAs]:
        """How each tensor of a part is stored."""
        return {name: stored_as(spec, self.ggml_type) for name, spec in table.items()}

    def encode(self) -> Encode:
        """In numpy."""
        return encode_rows


@dataclass(frozen=True, slots=True)
class PartFormats:
    """The format of each part.

    Attributes:
        decoder: of the decoder.
        mmproj: of the encoders and projectors.
        lora: of the adapters.
    """

    decoder: PartFormat
    mmproj: PartFormat
    lora: PartFormat


@dataclass(frozen=True, slots=True)
class PartTypes:
    """The type of each part's matrices.

    Attributes:
        decoder: of the decoder.
        mmproj: of the encoders and projectors.
        lora: of the adapters.
    """

    decoder: GGMLType = GGMLType.F16
    mmproj: GGMLType = GGMLType.Q8_0
    lora: GGMLType = GGMLType.Q8_0

    @property
    def formats(self) -> PartFormats:
        """The same as formats."""
        return PartFormats(OneType(self.decoder), OneType(self.mmproj), OneType(self.lora))
