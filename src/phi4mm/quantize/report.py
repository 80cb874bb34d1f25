"""What a quantisation did: sizes, types and errors of every part and group of tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.header import TensorInfo
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.quantize.loss import Loss
from phi4mm.quantize.plan import PlannedPart

_GROUPS: Final = (
    (r"\.lora_a$", "lora_a"),
    (r"\.lora_b$", "lora_b"),
    (r"^v\.", "vision encoder"),
    (r"^mm\.a\.", "audio projectors"),
    (r"^mm\.", "vision projector"),
    (r"^a\.", "audio encoder"),
)


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Matrices of one kind.

    Attributes:
        name: what they are.
        types: how many there are of each type.
        n_weights: their weights, columns of padding included.
        n_bytes: their size in the file.
        loss: what was lost; None for a part that was copied.
    """

    name: str
    types: Mapping[GGMLType, int]
    n_weights: int
    n_bytes: int
    loss: Loss | None

    @property
    def bits_per_weight(self) -> float:
        """Bits of the file per weight."""
        return 8 * self.n_bytes / self.n_weights


@dataclass(frozen=True, slots=True)
class PartReport:
    """One file.

    Attributes:
        path: the file.
        title: what it is.
        n_bytes: its size.
        groups: its matrices.
        bits_per_weight: of all its tensors.
        is_copy: whether it is the source's file, unchanged.
    """

    path: Path
    title: str
    n_bytes: int
    groups: tuple[GroupReport, ...]
    bits_per_weight: float
    is_copy: bool


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """A whole bundle.

    Attributes:
        parts: its files.
        bundle_id: the id they carry, the same as the source's.
        notes: what a person should know.
    """

    parts: tuple[PartReport, ...]
    bundle_id: str | None
    notes: tuple[str, ...]


def report_part(planned: PlannedPart) -> PartReport:
    """What became of a part, read from the file that was written."""
    with GGUFFile.open(planned.path) as file:
        infos = list(file.tensors.values())
    matrices = set(planned.source.matrices)
    groups: dict[str, list[TensorInfo]] = {}
    for info in infos:
        if info.name in matrices:
            groups.setdefault(group_of(info.name), []).append(info)
    return PartReport(
        path=planned.path,
        title=planned.source.title,
        n_bytes=planned.path.stat().st_size,
        groups=tuple(_report_group(planned, name, group) for name, group in groups.items()),
        bits_per_weight=bits_per_weight(infos),
        is_copy=planned.output is None,
    )


def bits_per_weight(infos: Collection[TensorInfo]) -> float:
    """Bits of tensors in their file per weight, columns of padding included."""
    return 8 * sum(info.n_bytes for info in infos) / _n_weights(infos)


def group_of(name: str) -> str:
    """What kind of matrix a tensor is: ``attn_qkv``, ``vision encoder``."""
    found = (group for pattern, group in _GROUPS if re.search(pattern, name))
    return next(found, re.sub(r"^blk\.\d+\.|\.weight$", "", name))


def _report_group(planned: PlannedPart, name: str, infos: list[TensorInfo]) -> GroupReport:
    losses = [planned.encoders[info.name].loss for info in infos] if planned.encoders else None
    return GroupReport(
        name=name,
        types=Counter(info.ggml_type for info in infos),
        n_weights=_n_weights(infos),
        n_bytes=sum(info.n_bytes for info in infos),
        loss=None if losses is None else Loss.total(losses),
    )


def _n_weights(infos: Iterable[TensorInfo]) -> int:
    return sum(prod(info.shape) for info in infos)
