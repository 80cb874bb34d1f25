"""Checks a file's tensors against the table of what its part must contain."""

from __future__ import annotations

from typing import Final

import numpy as np

from phi4mm.errors import ModelFileError
from phi4mm.modelfile.ggml_type import MATRIX_TYPES, GGMLType
from phi4mm.modelfile.header import TensorInfo
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT, TensorSpec, TensorTable

_NAMES_SHOWN: Final = 3


def check_tensors(file: GGUFFile, table: TensorTable, optional: TensorTable | None = None) -> None:
    """Refuse a file that lacks a tensor, has one too many, or one of the wrong shape or type.

    Args:
        file: the file.
        table: tensors it must have.
        optional: tensors it may have.

    Raises:
        ModelFileError: it names the tensor and what would be right.
    """
    allowed = table | (optional or {})
    if missing := [name for name in table if name not in file.tensors]:
        raise ModelFileError(f"{file.path}: {_list(missing)} missing")
    if unknown := [name for name in file.tensors if name not in allowed]:
        raise ModelFileError(f"{file.path}: {_list(unknown)} not of this part")
    for name, info in file.tensors.items():
        if fault := _fault(info, allowed[name]):
            raise ModelFileError(f"{file.path}: tensor {name} {fault}")


def check_rope_factors(file: GGUFFile) -> None:
    """Refuse RoPE factors that would make positions infinite or not a number."""
    for name in (ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT):
        factors = file.data(name)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelFileError(f"{file.path}: tensor {name} has a factor that is not above 0")


def _fault(info: TensorInfo, spec: TensorSpec) -> str | None:
    type_ = info.ggml_type
    if spec.kind == "f32" and type_ is not GGMLType.F32:
        return f"has type {type_.name}, must be F32"
    if type_ not in MATRIX_TYPES:
        return f"has type {type_.name}, which no weight can have"
    widths = {spec.shape[-1], type_.padded(spec.shape[-1])} if spec.may_pad else {spec.shape[-1]}
    shapes = [(*spec.shape[:-1], width) for width in sorted(widths)]
    if info.shape not in shapes:
        return f"has shape {info.shape}, must be {' or '.join(map(str, shapes))}"
    return None


def _list(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"tensor {shown} is" if len(names) == 1 else f"tensors {shown} are"
