"""ggml from Python: operations against numpy, weights in place and copied, refusals, aborts."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gguf
import numpy as np
import pytest
from encoder_reference import conv_2d, gelu_erf, silu, soft_max
from numpy.typing import NDArray

from phi4mm.errors import Cancelled, NativeError
from phi4mm.native.abort import AbortFlag
from phi4mm.native.ggml import Backend, Tensor, WeightData, Weights
from phi4mm.native.graph import Graph
from phi4mm.native.library import load

Array = NDArray[np.float32]
rng = np.random.default_rng(7)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(load(), n_threads=2) as backend:
        yield backend


def random(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def compute(
    backend: Backend, build: Callable[..., Tensor], *arrays: Array, n_dims: int = 2
) -> Array:
    """What ``build(graph, *inputs)`` gives for these arrays."""
    names = [f"in{i}" for i in range(len(arrays))]
    with Graph(backend, max_tensors=64) as g:
        inputs = [g.input(name, array.shape) for name, array in zip(names, arrays, strict=True)]
        g.output("out", build(g, *inputs), n_dims)
        return g.compute(dict(zip(names, arrays, strict=True)))["out"]


def error(found: Array, expected: NDArray[np.floating]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


# ---- operations

UNARY: dict[str, tuple[Callable[[Graph, Tensor], Tensor], Callable[[Array], Array]]] = {
    "square": (Graph.square, np.square),
    "scale": (lambda g, x: g.scale(x, 2.5, -1.0), lambda x: 2.5 * x - 1),
    "relu": (Graph.relu, lambda x: np.maximum(x, 0)),
    "silu": (Graph.silu, silu),
    "gelu_erf": (Graph.gelu_erf, gelu_erf),
    "swiglu": (Graph.swiglu, lambda x: x[:, :6] * silu(x[:, 6:])),
    "norm": (
        lambda g, x: g.norm(x, 1e-6),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6),
    ),
    "soft_max": (lambda g, x: g.soft_max(x, 0.5), lambda x: soft_max(0.5 * x)),
    "rows": (lambda g, x: g.rows(x, 2, 5), lambda x: x[2:5]),
    "pad": (lambda g, x: g.pad(x, 4, 1), lambda x: np.pad(x, ((0, 1), (0, 4)))),
    "permute": (lambda g, x: g.permute(x, (1, 0, 2, 3)), np.transpose),
    "reshape": (lambda g, x: g.reshape(x, 6, 14), lambda x: x.reshape(14, 6)),
}


@pytest.mark.parametrize("name", UNARY)
def test_operation_of_one_operand_matches_numpy(backend: Backend, name: str) -> None:
    build, expected = UNARY[name]
    x = 3 * random(7, 12)
    assert error(compute(backend, build, x), expected(x.astype(np.float64))) < 1e-5


@pytest.mark.parametrize(
    ("name", "expected"), [("add", np.add), ("mul", np.multiply), ("div", np.divide)]
)
def test_second_operand_repeats_over_the_first(
    backend: Backend, name: str, expected: np.ufunc
) -> None:
    a, b = random(5, 8), np.abs(random(8)) + 0.5
    found = compute(backend, getattr(Graph, name), a, b)
    assert error(found, expected(a, b)) < 1e-6


def test_mul_mat_repeats_the_weight_over_a_batch(backend: Backend) -> None:
    weight, x = random(2, 5, 16), random(6, 3, 16)
    found = compute(backend, Graph.mul_mat, weight, x, n_dims=3)
    assert error(found, x @ np.repeat(weight, 3, axis=0).swapaxes(1, 2)) < 1e-5


def test_soft_max_adds_the_bias_in_full_precision(backend: Backend) -> None:
    x, bias = random(3, 4, 9), 5 * random(3, 4, 9)
    found = compute(backend, lambda g, x, b: g.soft_max(x, 0.25, b), x, bias, n_dims=3)
    assert error(found, soft_max(0.25 * x.astype(np.float64) + bias)) < 1e-6
    rounded = bias.astype(np.float16).astype(np.float64)
    assert error(found, soft_max(0.25 * x + rounded)) > 1e-5


def test_flash_attention_is_exact_for_a_head_of_72(backend: Backend) -> None:
    q, k, v = random(2, 37, 72), random(2, 70, 72), random(2, 70, 72)
    scale = 72**-0.5
    found = compute(backend, lambda g, *qkv: g.flash_attention(*qkv, scale), q, k, v, n_dims=3)
    scores = scale * q.astype(np.float64) @ k.swapaxes(1, 2)
    assert error(found, (soft_max(scores) @ v).swapaxes(0, 1)) < 1e-6


def test_attention_does_without_the_kernel_that_a_device_lacks() -> None:
    class Plain(Backend):
        refused: ClassVar[list[str]] = []

        def supports(self, operation: Any) -> bool:
            name = load().ffi.string(load().lib.ggml_op_desc(operation)).decode()
            if name == "FLASH_ATTN_EXT":
                self.refused.append(name)
                return False
            return True

    q, k, v = random(2, 37, 24), random(2, 70, 24), random(2, 70, 24)
    with Plain(load(), n_threads=1) as plain:
        found = compute(plain, lambda g, *qkv: g.flash_attention(*qkv, 0.2), q, k, v, n_dims=3)
    scores = 0.2 * q.astype(np.float64) @ k.swapaxes(1, 2)
    assert error(found, (soft_max(scores) @ v).swapaxes(0, 1)) < 1e-5
    assert Plain.refused


def test_an_operation_that_a_device_lacks_is_named() -> None:
    class Poor(Backend):
        def supports(self, operation: Any) -> bool:
            return False

    with (
        Poor(load(), n_threads=1) as poor,
        pytest.raises(NativeError, match=r"CPU lacks RELU"),
        Graph(poor, max_tensors=8) as g,
    ):
        g.relu(Tensor.of(load().lib.ggml_new_tensor_4d(g.pointer, 0, 2, 1, 1, 1)))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((3, 3), 2, (1, 1)), ((1, 3), 1, (2, 0)), ((2, 3), 1, (0, 1))],
)
@pytest.mark.parametrize("n_channels", [2, 13, 32])
def test_depthwise_convolution_matches_loops(
    backend: Backend,
    kernel: tuple[int, int],
    stride: int,
    padding: tuple[int, int],
    n_channels: int,
) -> None:
    weight, x = random(n_channels, 1, *kernel), random(n_channels, 5, 9)
    found = compute(
        backend,
        lambda g, w, x: g.conv_2d_depthwise(w, x, stride, padding),
        weight,
        np.ascontiguousarray(x.transpose(1, 2, 0)),
        n_dims=3,
    ).transpose(2, 0, 1)
    padded = np.pad(x, ((0, 0), (padding[1],) * 2, (padding[0],) * 2)).astype(np.float64)
    assert error(found, conv_2d(padded, weight, stride, (0, 0))) < 1e-5


MISMATCHES: dict[str, Callable[[Graph, Tensor], Tensor]] = {
    "mul_mat": lambda g, x: g.mul_mat(x, g.input("y", (3, 9))),
    "add": lambda g, x: g.add(x, g.input("y", (5,))),
    "reshape to another size": lambda g, x: g.reshape(x, 5, 4),
    "reshape of a view that is not contiguous": lambda g, x: g.reshape(
        g.permute(x, (1, 0, 2, 3)), 6, 4
    ),
    "rows beyond the end": lambda g, x: g.rows(x, 2, 4),
    "pad by less than nothing": lambda g, x: g.pad(x, -1),
    "swiglu of odd rows": lambda g, x: g.swiglu(g.rows(g.input("y", (3, 7)), 0, 1)),
    "soft_max with the bias of one head": lambda g, x: g.soft_max(x, 1.0, g.input("y", (8,))),
    "flash_attention": lambda g, x: g.flash_attention(x, x, g.input("y", (2, 8)), 1.0),
    "convolution of one column": lambda g, x: g.conv_2d_depthwise(
        g.input("k", (8, 1, 3, 3)), g.input("y", (4, 1, 8)), 1, (1, 1)
    ),
    "output of too few dimensions": lambda g, x: _output(g, x),
}


def _output(g: Graph, x: Tensor) -> Tensor:
    g.output("y", x, n_dims=1)
    return x


@pytest.mark.parametrize("name", MISMATCHES)
def test_wrong_shapes_are_an_error_and_no_abort(backend: Backend, name: str) -> None:
    with Graph(backend) as g, pytest.raises(NativeError):
        MISMATCHES[name](g, g.input("x", (3, 8)))


# ---- graphs


def test_outputs_survive_what_is_computed_from_them(backend: Backend) -> None:
    x = random(4, 8)
    with Graph(backend) as g:
        once = g.relu(g.input("x", x.shape))
        g.output("once", once)
        twice = g.scale(once, 2.0)  # ggml would do this in place
        g.output("view", g.rows(twice, 1, 2))
        g.output("twice", g.scale(g.scale(twice, 3.0), 1 / 3))
        found = g.compute({"x": x})
    relu = np.maximum(x, 0)
    assert error(found["once"], relu) == 0
    assert error(found["view"], 2 * relu[1:2]) == 0
    assert error(found["twice"], 2 * relu) < 1e-6


def test_memory_is_planned_for_each_graph(backend: Backend) -> None:
    """Two graphs of the same sizes that keep different tensors."""
    x = random(4, 8)

    def chain(kept: int) -> dict[str, Array]:
        with Graph(backend) as g:
            y = g.input("x", x.shape)
            for step in range(6):
                y = g.cont(y) if step != kept else g.scale(y, 1.0)
                if step == kept:
                    g.output("kept", y)
                y = g.scale(y, 2.0)
            g.output("last", y)
            return g.compute({"x": x})

    for kept in (4, 0, 2, 5, 1):
        found = chain(kept)
        assert error(found["kept"], x * 2**kept) == 0
        assert error(found["last"], x * 2**6) == 0


def test_compute_wants_exactly_its_inputs(backend: Backend) -> None:
    x = random(2, 3)
    with Graph(backend) as g:
        g.output("y", g.relu(g.input("x", x.shape)))
        with pytest.raises(NativeError, match="inputs are"):
            g.compute({})
        with pytest.raises(NativeError, match=r"x is \(3, 2\)"):
            g.compute({"x": np.ascontiguousarray(x.T)})
        assert error(g.compute({"x": x})["y"], np.maximum(x, 0)) == 0
        with pytest.raises(NativeError, match="once"):
            g.compute({"x": x})


def test_a_graph_refuses_more_operations_than_it_was_made_for(backend: Backend) -> None:
    with Graph(backend, max_tensors=4) as g:
        x = g.relu(g.relu(g.input("x", (2, 2))))
        with pytest.raises(NativeError, match="more operations"):
            g.relu(x)


def test_handles_close_twice_and_refuse_use_after() -> None:
    backend = Backend(load(), n_threads=1)
    weights = Weights(backend, {"w": WeightData.of_array(random(2, 2))})
    graph = Graph(backend)
    for handle in (graph, weights, backend):
        handle.close()
        handle.close()
    with pytest.raises(NativeError, match="close"):
        Graph(backend).compute({})
    with pytest.raises(NativeError, match="close"):
        graph.input("x", (1,))


def test_no_threads_are_an_error() -> None:
    with pytest.raises(NativeError, match="0 threads"):
        Backend(load(), n_threads=0)


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(NativeError, match="no device Abacus"):
        Backend(load(), n_threads=1, device="Abacus")


def test_a_device_is_found_by_its_name() -> None:
    with Backend(load(), n_threads=1, device="CPU") as backend:
        assert backend.is_cpu
        assert error(compute(backend, Graph.relu, random(2, 2)) * 0, np.zeros((2, 2))) == 0


# ---- weights


def aligned(array: Array) -> Array:
    """A copy that begins on 32 bytes."""
    raw = np.empty(array.nbytes + 32, np.uint8)
    start = -raw.ctypes.data % 32
    copy = raw[start : start + array.nbytes].view(np.float32).reshape(array.shape)
    copy[...] = array
    return copy


def askew(array: Array) -> Array:
    """A copy that does not begin on 32 bytes."""
    room = aligned(np.empty(array.size + 1, np.float32))
    copy = room[1:].reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize(("place", "is_in_place"), [(aligned, True), (askew, False)])
def test_aligned_weights_are_used_where_they_lie(
    backend: Backend, place: Callable[[Array], Array], is_in_place: bool
) -> None:
    matrix, x = place(random(5, 16)), random(3, 16)
    with Weights(backend, {"w": WeightData(0, matrix.shape, matrix)}) as weights:
        before = x @ matrix.T
        assert error(compute(backend, lambda g, x: g.mul_mat(weights["w"], x), x), before) < 1e-5
        matrix[...] = 1
        after = x @ matrix.T if is_in_place else before
        assert error(compute(backend, lambda g, x: g.mul_mat(weights["w"], x), x), after) < 1e-5


@pytest.mark.parametrize(
    ("type_name", "tolerance"), [("F16", 3e-3), ("BF16", 3e-2), ("Q8_0", 3e-2), ("Q6_K", 3e-2)]
)
def test_quantised_weights_multiply(backend: Backend, type_name: str, tolerance: float) -> None:
    if type_name == "Q6_K":  # gguf reads but does not write it: zero but for one scale
        kind = gguf.GGMLQuantizationType.Q6_K
        data = rng.integers(0, 256, (5, 210), np.uint8)
        data[:, 208:] = np.array([0.001], np.float16).view(np.uint8)
    else:
        kind = gguf.GGMLQuantizationType[type_name]
        data = gguf.quants.quantize(random(5, 256) / 16, kind)
    matrix = gguf.quants.dequantize(data.view(np.uint8), kind).reshape(5, 256)
    x = random(3, 256)
    weight = WeightData(int(kind), (5, 256), data)
    with Weights(backend, {"w": weight}) as weights:
        found = compute(backend, lambda g, x: g.mul_mat(weights["w"], x), x)
    assert error(found, x @ matrix.T) < tolerance * np.abs(matrix).max() * 16


def test_weights_must_have_the_bytes_of_their_shape(backend: Backend) -> None:
    with pytest.raises(NativeError, match="w has 24 bytes, expected 32"):
        Weights(backend, {"w": WeightData(0, (2, 4), random(2, 3))})
    with pytest.raises(NativeError, match="w: 32 does not divide 48"):
        Weights(backend, {"w": WeightData(8, (1, 48), np.zeros(51, np.uint8))})


# ---- cancelling


def busy(backend: Backend, n_steps: int) -> None:
    x = random(256, 256)
    with Graph(backend) as g:
        first = y = g.input("x", x.shape)
        for _ in range(n_steps):
            y = g.mul_mat(first, y)
        g.output("y", y)
        g.compute({"x": x})


def test_a_set_flag_stops_a_computation_that_is_about_to_begin() -> None:
    flag = AbortFlag(load())
    with Backend(load(), n_threads=2, abort=flag) as backend:
        flag.set()
        with pytest.raises(Cancelled):
            busy(backend, 1)
        flag.clear()
        busy(backend, 1)


def test_a_flag_set_by_another_thread_stops_a_running_computation() -> None:
    flag = AbortFlag(load())
    with Backend(load(), n_threads=1, abort=flag) as backend:
        started = time.perf_counter()
        busy(backend, 20)
        n_steps = math.ceil(20 * 3 / (time.perf_counter() - started))  # some three seconds
        timer = threading.Timer(0.1, flag.set)
        timer.start()
        with pytest.raises(Cancelled):
            busy(backend, min(n_steps, 3000))
        timer.join()
