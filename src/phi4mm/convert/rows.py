"""Where the rows of an output tensor come from.

A ``RowSource`` gives any range of rows as float32, so that no tensor is ever held whole.  The
tensors of a checkpoint are one already; here are the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from phi4mm.convert.rules import Resolved
from phi4mm.convert.tensorfile import Rows, SourceKey, SourceTensor


class RowSource(Protocol):
    """Rows on demand; a vector is one row."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_cols(self) -> int:
        """Elements of a row."""

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """The tensors of the checkpoint that they are made from; none of them may be missing."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``, (stop - start, n_cols) float32."""


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """One row that is in memory."""

    values: Rows = field(repr=False)

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """None."""
        return ()

    @property
    def n_rows(self) -> int:
        """Always 1."""
        return 1

    @property
    def n_cols(self) -> int:
        """Elements of the row."""
        return self.values.size

    def read(self, start: int, stop: int) -> Rows:
        """The row, as (1, n_cols)."""
        return self.values.reshape(1, -1)[start:stop]


@dataclass(frozen=True, slots=True)
class MergedRows:
    """A matrix with an adapter merged: ``weight + scale * b @ a``, in float32.

    ``a`` is read again for every block: caching it for all matrices would hold the whole adapter.
    """

    weight: SourceTensor
    a: SourceTensor
    b: SourceTensor
    scale: float

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """All three matrices."""
        return (self.weight, self.a, self.b)

    @property
    def n_rows(self) -> int:
        """Rows of the weight."""
        return self.weight.n_rows

    @property
    def n_cols(self) -> int:
        """Columns of the weight."""
        return self.weight.n_cols

    def read(self, start: int, stop: int) -> Rows:
        """Merged rows."""
        change = self.b.read(start, stop) @ self.a.read(0, self.a.n_rows)
        merged: Rows = self.weight.read(start, stop) + np.float32(self.scale) * change
        return merged


@dataclass(frozen=True, slots=True)
class GluBiasRows:
    """The bias before a gated unit, with the biases of the unit's two halves added."""

    bias: SourceTensor
    halves: tuple[SourceTensor, ...]

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """All three vectors."""
        return (self.bias, *self.halves)

    @property
    def n_rows(self) -> int:
        """Always 1."""
        return 1

    @property
    def n_cols(self) -> int:
        """Elements of the bias."""
        return self.bias.n_cols

    def read(self, start: int, stop: int) -> Rows:
        """The sum, as (1, n_cols)."""
        halves = [half.read(0, half.n_rows).reshape(-1) for half in self.halves]
        total: Rows = self.bias.read(start, stop) + np.concatenate(halves)
        return total


def rows_of(resolved: Resolved) -> RowSource:
    """The rows of a resolved rule's output."""
    first, *rest = resolved.sources
    if resolved.rule.transform == "glu_bias":
        return GluBiasRows(first, tuple(rest))
    return first  # squeezing leaves the order of the elements


def bind(rows: RowSource, here: Mapping[SourceKey, SourceTensor]) -> RowSource:
    """The same rows with tensors that have arrived in the place of those that are described.

    Args:
        rows: what a rule's output is made from.
        here: tensors whose data can be read, by file and name.
    """

    def found(tensor: SourceTensor) -> SourceTensor:
        return here.get(tensor.key, tensor)

    match rows:
        case SourceTensor():
            return found(rows)
        case MergedRows():
            return MergedRows(found(rows.weight), found(rows.a), found(rows.b), rows.scale)
        case GluBiasRows():
            return GluBiasRows(found(rows.bias), tuple(map(found, rows.halves)))
        case _:
            return rows
