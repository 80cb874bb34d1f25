"""Where the rows of an output tensor come from.

A ``RowSource`` gives any range of rows as float32, so that no tensor is ever held whole.  The
tensors of a checkpoint are one already; here are the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from phi4mm.convert.rules import Resolved
from phi4mm.convert.tensorfile import Rows, SourceTensor


class RowSource(Protocol):
    """Rows on demand; a vector is one row."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_cols(self) -> int:
        """Elements of a row."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``, (stop - start, n_cols) float32."""


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """One row that is in memory."""

    values: Rows = field(repr=False)

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


def rows_of(resolved: Resolved) -> RowSource:
    """The rows of a resolved rule's output."""
    if resolved.rule.transform != "glu_bias":
        return resolved.sources[0]  # squeezing leaves the order of the elements
    bias, *halves = (source.read(0, source.n_rows).reshape(-1) for source in resolved.sources)
    return ArrayRows(bias + np.concatenate(halves))
