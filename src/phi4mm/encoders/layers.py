"""Layers that both encoders are made of, as operations of a graph.

Shapes are ggml's: ``ne=[n_embd, n_tokens]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import Leaf
from phi4mm.native.ggml import Tensor, WeightData, Weights
from phi4mm.native.graph import Graph

Name: TypeAlias = Callable[[Leaf], str]
Layer = TypeVar("Layer", bound=str)


class Block(Generic[Layer]):
    """One block of an encoder: its weights, by the layer's short name, and the graph.

    Args:
        graph: what the layers are added to.
        weights: of the encoder.
        name: a tensor's name, from its layer in the block and its leaf.
        eps: epsilon of the norms.
    """

    def __init__(
        self, graph: Graph, weights: Weights, name: Callable[[Layer, Leaf], str], eps: float
    ) -> None:
        self.graph = graph
        self._weights = weights
        self._name = name
        self._eps = eps

    def weight(self, layer: Layer, leaf: Leaf) -> Tensor:
        """A weight of this block."""
        return self._weights[self._name(layer, leaf)]

    def linear(self, layer: Layer, x: Tensor) -> Tensor:
        """The linear layer of this name."""
        return linear(self.graph, self._weights, partial(self._name, layer), x)

    def layer_norm(self, layer: Layer, x: Tensor) -> Tensor:
        """The LayerNorm of this name."""
        g = self.graph
        scaled = g.mul(g.norm(x, self._eps), self.weight(layer, "weight"))
        return g.add(scaled, self.weight(layer, "bias"))


def stored(file: GGUFFile, names: Iterable[str]) -> dict[str, WeightData]:
    """Tensors of a file, as they lie in it."""
    infos = [file.tensors[name] for name in names]
    return {i.name: WeightData(int(i.ggml_type), i.shape, file.raw(i.name)) for i in infos}


def linear(g: Graph, weights: Weights, name: Name, x: Tensor) -> Tensor:
    """``W x + b``; ne=[n_in, n] -> ne=[n_out, n].

    A matrix whose rows the file pads with zeros takes rows of ``x`` padded likewise.
    """
    return g.add(g.dense(weights[name("weight")], x), weights[name("bias")])


def split_heads(g: Graph, x: Tensor, n_head: int) -> Tensor:
    """ne=[n_embd, n] -> ne=[n_embd_head, n, n_head], a view."""
    heads = g.reshape(x, x.ne[0] // n_head, n_head, x.ne[1])
    return g.permute(heads, (0, 2, 1, 3))


def gelu_tanh(g: Graph, x: Tensor) -> Tensor:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))``.

    ggml's own operation looks the value up in a table of 16-bit floats, and errs by 4e-3.  Since
    ``(1 + tanh(u)) / 2 = sigmoid(2 u)``, this is ``x sigmoid(p x) = silu(p x) / p``, with ``p``
    always positive.
    """
    factor = 2 * math.sqrt(2 / math.pi)
    p = g.scale(g.square(x), factor * 0.044715, factor)
    return g.div(g.silu(g.mul(p, x)), p)
