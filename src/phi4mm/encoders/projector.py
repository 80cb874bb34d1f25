"""A projector: the two linear layers from an encoder's width to the decoder's.

Source: docs/model.md, "Compression and HD arrangement" and "Projectors".
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phi4mm.encoders.layers import linear
from phi4mm.encoders.steps import finish
from phi4mm.modelfile.tensors import Leaf
from phi4mm.native.ggml import Backend, Weights
from phi4mm.native.graph import Graph

Array: TypeAlias = NDArray[np.float32]
Index: TypeAlias = Literal[0, 2]

# Rows projected at a time: bounds the memory of pictures of ten thousand tokens.
_MAX_ROWS = 1024


class Projector:
    """Linear, GELU with the error function, linear.

    Args:
        backend: what computes it.
        weights: hold both layers.
        name: a tensor's name, from the layer's index and the leaf.
    """

    def __init__(
        self, backend: Backend, weights: Weights, name: Callable[[Index, Leaf], str]
    ) -> None:
        self._backend = backend
        self._weights = weights
        self._name = name

    def project(self, tokens: Array) -> Array:
        """float32 (n_tokens, n_embd) -> (n_tokens, n_embd_out)."""
        return finish(self.steps(tokens))

    def steps(self, tokens: Array) -> Generator[None, None, Array]:
        """The same, with a pause between one part and the next."""
        projected: list[Array] = []
        for start in range(0, len(tokens), _MAX_ROWS):
            if projected:
                yield
            projected.append(self._project(tokens[start : start + _MAX_ROWS]))
        return np.concatenate(projected)

    def _project(self, tokens: Array) -> Array:
        with Graph(self._backend, max_tensors=16) as g:
            x = g.input("tokens", tokens.shape)
            x = g.gelu_erf(linear(g, self._weights, partial(self._name, 0), x))
            g.output("projected", linear(g, self._weights, partial(self._name, 2), x))
            return g.compute({"tokens": tokens})["projected"]
