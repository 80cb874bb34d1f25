"""The vision encoder as an mmproj file that stock llama.cpp loads, by its projector ``adapter``.

That projector (GLM-Edge's) computes, after the same SigLIP encoder::

    c = conv(x), 2x2 with stride 2, and a bias     h = gelu(norm(linear(c)))
    y = down(silu(gate(h)) * up(h))                [begin, y, end]

This model computes ``W2 gelu(W1 mean(x) + b1) + b2``.  The weights here make one of the other:

* the convolution is the mean, and has channels that are 1 whatever the picture;
* ``linear`` is W1 with b1 from such a channel, and has rows that are plus or minus a number far
  larger than all others, and rows that bring the sum of all to 0.  So the norm finds the mean 0
  and a deviation that is known, and its weight undoes it;
* ``gate`` gives a constant, ``up`` is the identity, ``down`` is W2 divided by the constant.

What is different: the GELU of the projector is the tanh form; a picture is one crop, between the
view separator and one newline, instead of two views with a newline after each row; and it is fitted
into the middle of that crop over black, where the reference begins at the top left and masks the
rest.

Source: llama.cpp 0c1e570, ``tools/mtmd/models/llava.cpp`` and ``clip.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from phi4mm.convert.tensorfile import Rows, SourceTensor
from phi4mm.convert.writer import OutputFile, OutputTensor
from phi4mm.modelfile import keys, tensors
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import VisionHParams, WritableMetadata
from phi4mm.modelfile.keys import Key
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.native.block_type import stored_rows
from phi4mm.native.library import load

PROJECTOR: Final = "adapter"
_PROJECTOR_TYPE: Final = Key("clip.projector_type", "str", "the projector's graph")

# Channels beyond the encoder's own: one would do, but blocks of the usual types have 32.
_N_CHANNELS: Final = 32
# Rows that hold the large number, and as many that share what brings the sum to 0.
_N_LARGE: Final = 32
_LARGE: Final = 2.0**15  # below F16's 65504
# What the channel that is always the same holds after the norm; large enough for GELU to pass it.
_CONSTANT: Final = 8.0
# Times _CONSTANT gives about 1.28, whose SiLU is about 1.
_GATE: Final = float(np.float16(0.16))


@dataclass(frozen=True, slots=True)
class MadeRows:
    """Rows that a function makes when they are needed.

    Attributes:
        n_rows: number of rows.
        n_cols: elements of a row.
        make: rows ``start`` to ``stop``, float32.
    """

    n_rows: int
    n_cols: int
    make: Callable[[int, int], Rows]

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """None: nothing of a checkpoint."""
        return ()

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``, (stop - start, n_cols) float32."""
        return self.make(start, stop)


def stock_vision_file(source: GGUFFile, h: VisionHParams, path: Path, name: str) -> OutputFile:
    """The file, planned; matrices in F16, everything else in F32.

    Args:
        source: an mmproj file of this project; stays open until the file is written.
        h: of its vision encoder.
        path: where it will be.
        name: what the model is called.
    """
    return OutputFile(path, _metadata(h, name), [*_encoder(source, h), *_projector(source, h)])


def _metadata(h: VisionHParams, name: str) -> WritableMetadata:
    own = (keys.Vision.PROJECTOR_TYPE, keys.Vision.MAX_CROPS, keys.Vision.POOL)
    metadata: WritableMetadata = {
        keys.General.ARCHITECTURE: keys.ARCH_MMPROJ,
        keys.General.TYPE: keys.TYPE_MMPROJ,
        keys.General.NAME: f"{name} for llama.cpp",
        keys.General.FILE_TYPE: 1,  # F16
        keys.Clip.HAS_VISION: True,
        keys.Clip.HAS_AUDIO: False,
        keys.Clip.USE_GELU: True,
        _PROJECTOR_TYPE: PROJECTOR,
    }
    return metadata | {key: value for key, value in h.to_metadata().items() if key not in own}


# ---- the encoder: as it is


def _encoder(source: GGUFFile, h: VisionHParams) -> Iterator[OutputTensor]:
    own = (tensors.IMAGE_NEWLINE, tensors.VIEW_SEPARATOR)
    for name, spec in tensors.vision_tensors(h).items():
        if name not in own and not name.startswith("mm."):
            type_ = GGMLType.F16 if spec.kind == "matrix" else GGMLType.F32
            yield OutputTensor(name, spec.shape, type_, _stored(source, name, spec.shape))


def _stored(source: GGUFFile, name: str, shape: tuple[int, ...]) -> MadeRows:
    """A tensor of the file without the zeros that its type may have needed."""
    n_cols = shape[-1]

    def make(start: int, stop: int) -> Rows:
        info = source.tensors[name]
        blocks = source.raw(name).reshape(-1, info.ggml_type.row_bytes(info.shape[-1]))
        return stored_rows(load(), blocks[start:stop], info.ggml_type)[:, :n_cols]

    return MadeRows(math.prod(shape[:-1]), n_cols, make)


# ---- the projector


def _projector(source: GGUFFile, h: VisionHParams) -> Iterator[OutputTensor]:
    for name, values in adapter_tensors(_own_projector(source, h)).items():
        type_ = GGMLType.F16 if values.ndim == 2 else GGMLType.F32
        yield OutputTensor(f"adapter.{name}", values.shape, type_, _in_memory(values))


def _own_projector(source: GGUFFile, h: VisionHParams) -> OwnProjector:
    def read(name: str) -> Rows:
        shape = table[name].shape
        rows = _stored(source, name, shape)
        return rows.read(0, rows.n_rows).reshape(shape)

    table = tensors.vision_tensors(h)
    return OwnProjector(
        w1=read(tensors.vision_projector(0, "weight")),
        b1=read(tensors.vision_projector(0, "bias")),
        w2=read(tensors.vision_projector(2, "weight")),
        b2=read(tensors.vision_projector(2, "bias")),
        separator=read(tensors.VIEW_SEPARATOR),
        newline=read(tensors.IMAGE_NEWLINE),
    )


def _in_memory(values: Rows) -> MadeRows:
    rows = values.reshape(len(values) if values.ndim > 1 else 1, -1)
    return MadeRows(*rows.shape, lambda start, stop: rows[start:stop])


@dataclass(frozen=True, slots=True)
class OwnProjector:
    """This model's projector, and the two vectors that it is also given.

    Attributes:
        w1: (n_embd_out, n_embd).
        b1: (n_embd_out,).
        w2: (n_embd_out, n_embd_out).
        b2: (n_embd_out,).
        separator: (n_embd,), what stands before the whole picture.
        newline: (n_embd,), what ends a row.
    """

    w1: Rows
    b1: Rows
    w2: Rows
    b2: Rows
    separator: Rows
    newline: Rows

    def project(self, x: Rows) -> Rows:
        """(n_embd,) -> (n_embd_out,), as the model does."""
        z = self.w1 @ x + self.b1
        phi = [(1 + math.erf(value / math.sqrt(2))) / 2 for value in z]
        projected: Rows = self.w2 @ (z * np.array(phi, np.float32)) + self.b2
        return projected


def adapter_tensors(own: OwnProjector) -> dict[str, Rows]:
    """The tensors of the stock projector that computes the same, by their names in it."""
    n_out, n_embd = own.w1.shape
    n_in, n_hidden = n_embd + _N_CHANNELS, n_out + 2 * _N_LARGE
    conv = np.zeros((n_in, n_embd, 2, 2), np.float32)
    conv[range(n_embd), range(n_embd)] = 0.25
    gate = np.zeros((n_hidden, n_hidden), np.float32)
    gate[:, n_out] = _GATE
    return {
        "conv.weight": conv,
        "conv.bias": _from(n_embd, n_in, 1),
        "linear.linear.weight": _first_linear(own, n_in, n_hidden),
        "linear.norm1.weight": _up_to(n_out, n_hidden, _LARGE * math.sqrt(_N_LARGE / n_hidden)),
        "linear.norm1.bias": _from(n_out, n_hidden, _CONSTANT),
        "linear.dense_h_to_4h.weight": np.eye(n_hidden, dtype=np.float32),
        "linear.gate.weight": gate,
        "linear.dense_4h_to_h.weight": _second_linear(own, n_hidden),
        "boi": own.project(own.separator),
        "eoi": own.project(own.newline),
    }


def _first_linear(own: OwnProjector, n_in: int, n_hidden: int) -> Rows:
    """W1 with b1 beside it; then the large numbers, then the rows that balance the sum."""
    n_out, n_embd = own.w1.shape
    matrix = np.zeros((n_hidden, n_in), np.float32)
    matrix[:n_out, :n_embd], matrix[:n_out, n_embd] = own.w1, own.b1
    n_balance = n_out + _N_LARGE
    matrix[n_out:n_balance:2, n_embd], matrix[n_out + 1 : n_balance : 2, n_embd] = _LARGE, -_LARGE
    matrix[n_balance:] = -matrix[:n_out].sum(axis=0) / _N_LARGE
    return matrix


def _second_linear(own: OwnProjector, n_hidden: int) -> Rows:
    """W2 with b2 beside it, divided by what the gate multiplies with."""
    n_out = len(own.b2)
    matrix = np.zeros((n_out, n_hidden), np.float32)
    matrix[:, :n_out], matrix[:, n_out] = own.w2, own.b2 / _CONSTANT
    gate = _GATE * _CONSTANT
    matrix *= (1 + math.exp(-gate)) / gate
    return matrix


def _up_to(stop: int, size: int, value: float) -> Rows:
    return np.where(np.arange(size) < stop, value, 0).astype(np.float32)


def _from(start: int, size: int, value: float) -> Rows:
    return np.where(np.arange(size) < start, 0, value).astype(np.float32)
