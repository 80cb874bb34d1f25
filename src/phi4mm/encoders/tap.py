"""Intermediate tensors, recorded by name, for comparison with a reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from phi4mm.native.ggml import Tensor
from phi4mm.native.graph import Graph

Array: TypeAlias = NDArray[np.float32]


class Taps:
    """Records the intermediate tensors whose names it was given, and costs nothing for others.

    A tensor that is computed in pieces (crops, attention chunks) is recorded piece by piece.

    Args:
        names: those to record; ``siglip`` and ``conformer`` say which there are.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._pieces: dict[str, list[Array]] = {}

    def mark(self, graph: Graph, name: str, x: Tensor) -> Tensor:
        """Have the graph return this tensor if it is wanted; ``x`` itself goes on."""
        if name in self._names:
            graph.output(name, x)
        return x

    def add(self, name: str, piece: Array) -> None:
        """Record an array, or its next piece, if it is wanted."""
        if name in self._names:
            self._pieces.setdefault(name, []).append(piece)

    def add_all(self, pieces: Mapping[str, Array]) -> None:
        """Record those of a graph's outputs that are wanted."""
        for name, piece in pieces.items():
            self.add(name, piece)

    def pieces(self, name: str) -> list[Array]:
        """What was recorded under a name, in order.

        Raises:
            KeyError: nothing was.
        """
        return self._pieces[name]
