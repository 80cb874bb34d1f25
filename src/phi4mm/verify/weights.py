"""Every weight of a bundle against the checkpoint's; needs no other implementation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from phi4mm.convert.checkpoint import Checkpoint
from phi4mm.convert.part_type import PartTypes
from phi4mm.convert.plan import Plan, PlannedFile, plan_checkpoint
from phi4mm.convert.rows import RowSource
from phi4mm.errors import ModelFileError
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.native.block_type import stored_rows
from phi4mm.native.library import load
from phi4mm.progress import Advance, Progress, counter
from phi4mm.quantize.source import SourcePart, parts_of

_BLOCK_WEIGHTS: Final = 1 << 22
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PartError:
    """How far the weights of a part are from the checkpoint's.

    Attributes:
        part: what it is.
        types: element types of its tensors.
        n_tensors: tensors compared.
        relative: root mean square of the differences over that of the weights.
        worst: the tensor with the largest such number.
        worst_relative: that number.
    """

    part: str
    types: tuple[str, ...]
    n_tensors: int
    relative: float
    worst: str
    worst_relative: float


@dataclass(frozen=True, slots=True)
class WeightReport:
    """What became of a checkpoint's tensors.

    Attributes:
        n_used: those that went into the bundle.
        n_dropped: those left out, by reason.
        parts: the bundle's parts.
    """

    n_used: int
    n_dropped: Mapping[str, int]
    parts: tuple[PartError, ...]

    @property
    def n_tensors(self) -> int:
        """All tensors of the checkpoint."""
        return self.n_used + sum(self.n_dropped.values())


def compare_weights(
    checkpoint: Checkpoint, bundle: Bundle, progress: Progress | None = None
) -> WeightReport:
    """Account for every tensor of the checkpoint, and compare every tensor of the bundle.

    Args:
        checkpoint: the source.
        bundle: what was made of it.
        progress: told of the bundle's bytes that were compared.

    Raises:
        ModelFileError: the bundle was made from another checkpoint, or the checkpoint is wrong.
    """
    merged = bundle.decoder.hparams.merged_adapter
    plan = plan_checkpoint(checkpoint, Path(), PartTypes().formats, merged)
    if bundle.bundle_id != plan.bundle_id:
        raise ModelFileError(
            f"{bundle.decoder.path}: bundle id {bundle.bundle_id}, must be {plan.bundle_id}: it "
            f"was not made from {checkpoint.path}"
        )
    parts = list(parts_of(bundle))
    infos = (info for part in parts for info in part.file.tensors.values())
    advance = counter(sum(info.n_bytes for info in infos), progress)
    errors = tuple(_compare_part(part, _planned(plan, part), advance) for part in parts)
    return WeightReport(plan.n_used, plan.dropped, errors)


def _planned(plan: Plan, part: SourcePart) -> PlannedFile:
    return next(file for file in plan.files if file.part == part.title)


def _compare_part(part: SourcePart, planned: PlannedFile, advance: Advance) -> PartError:
    sources = {tensor.name: tensor.rows for tensor in planned.output.tensors}
    error = value = 0.0
    relative: dict[str, float] = {}
    for name in part.file.tensors:
        e, v = np.sum([*_squares(part.file, name, sources[name], advance)], axis=0)
        relative[name] = _ratio(e, v)
        error, value = error + e, value + v
    worst = max(relative, key=relative.__getitem__)
    types = dict.fromkeys(info.ggml_type.name for info in part.file.tensors.values())
    return PartError(
        part=part.title,
        types=tuple(types),
        n_tensors=len(relative),
        relative=_ratio(error, value),
        worst=worst,
        worst_relative=relative[worst],
    )


def _ratio(error: float, value: float) -> float:
    """Root of a ratio of sums of squares; of nothing to nothing 0, of NaN infinite."""
    if error == 0:
        return 0.0
    return math.sqrt(error / value) if value and math.isfinite(error) else math.inf


def _squares(
    file: GGUFFile, name: str, source: RowSource, advance: Advance
) -> Iterator[tuple[float, float]]:
    """Sums of squared differences and of squared weights, block by block of rows."""
    step = max(1, _BLOCK_WEIGHTS // source.n_cols)
    stored = _row_bytes(file, name, source.n_rows)
    for start in range(0, source.n_rows, step):
        stop = min(start + step, source.n_rows)
        right = source.read(start, stop)
        found = stored_rows(load(), stored[start:stop], file.tensors[name].ggml_type)
        difference = found[:, : source.n_cols].astype(np.float64) - right
        yield float((difference**2).sum()), float((right.astype(np.float64) ** 2).sum())
        advance(stored[start:stop].nbytes)


def _row_bytes(file: GGUFFile, name: str, n_rows: int) -> npt.NDArray[np.uint8]:
    return file.raw(name).reshape(n_rows, -1)
