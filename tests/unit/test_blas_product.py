"""Products by OpenBLAS in a graph: against float64, from stored types, chosen by a trial."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from phi4mm.errors import NativeError
from phi4mm.native import ggml, openblas
from phi4mm.native.blas_product import BlasProducts, is_worth_it
from phi4mm.native.ggml import Backend, Weights
from phi4mm.native.ggml import WeightData as Data
from phi4mm.native.graph import Graph
from phi4mm.native.library import load
from phi4mm.native.product_choice import ProductChoice

Array = NDArray[np.float32]
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
N_OUT, N_IN = 700, 96  # more than two blocks for one thread, in parts that no block divides

if not openblas.is_here():
    pytest.skip("numpy has another library for products", allow_module_level=True)


@pytest.fixture(params=[1, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with Backend(load(), n_threads=request.param) as backend:
        yield backend


def random(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def stored(array: Array, name: str) -> tuple[Data, Array]:
    """A weight of a type, and the numbers it holds."""
    kind = gguf.GGMLQuantizationType[name]
    data = np.ascontiguousarray(gguf.quants.quantize(array, kind))
    numbers = gguf.quants.dequantize(data, kind).reshape(array.shape).astype(np.float32)
    return Data(int(kind), array.shape, data), numbers


def product(backend: Backend, weight: Data, x: Array, n_dims: int = 2, way: str = "dense") -> Array:
    with Weights(backend, {"w": weight}) as weights, Graph(backend, max_tensors=16) as g:
        rows = g.input("x", x.shape)
        g.output("y", getattr(g, way)(weights["w"], rows), n_dims)
        return g.compute({"x": x})["y"]


def error(found: Array, expected: NDArray[np.float64]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def exact(x: Array, numbers: Array) -> NDArray[np.float64]:
    return x.astype(np.float64) @ numbers[:, : x.shape[-1]].T.astype(np.float64)


@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_of_float32(backend: Backend, name: str) -> None:
    weight, numbers = stored(random(N_OUT, N_IN), name)
    x = random(130, N_IN)
    assert error(product(backend, weight, x, way="blas_product"), exact(x, numbers)) < 1e-6


def test_ggml_rounds_what_it_multiplies_with_quantised_weights(backend: Backend) -> None:
    weight, numbers = stored(random(N_OUT, N_IN), "Q8_0")
    x = random(130, N_IN)
    assert error(product(backend, weight, x, way="mul_mat"), exact(x, numbers)) > 1e-4


@pytest.mark.parametrize("way", ["blas", "ggml"])
def test_rows_shorter_than_the_matrix_have_zeros_at_their_ends(backend: Backend, way: str) -> None:
    backend.prefers_blas = lambda _type: way == "blas"
    weight, numbers = stored(random(2048, N_IN), "F32")
    x = random(1024, N_IN - 16)
    assert is_worth_it(1024, 2048 * N_IN)
    assert error(product(backend, weight, x), exact(x, numbers)) < 1e-6


def test_rows_of_more_dimensions(backend: Backend) -> None:
    weight, numbers = stored(random(N_OUT, N_IN), "F16")
    x = random(3, 5, 7, N_IN)
    found = product(backend, weight, x, n_dims=4, way="blas_product")
    assert error(found, exact(x, numbers)) < 1e-6


def test_views_and_shapes_that_do_not_fit_are_refused(backend: Backend) -> None:
    weight, _ = stored(random(32, 32), "F32")
    with Weights(backend, {"w": weight}) as weights, Graph(backend, max_tensors=16) as g:
        x = g.input("x", (4, 8, 32))
        for odd in (g.permute(x, (0, 2, 1, 3)), g.input("long", (4, 33))):
            with pytest.raises(NativeError, match="ggml_custom_4d"):
                g.blas_product(weights["w"], odd)


# ---- which way


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The types of weights that OpenBLAS multiplies with."""
    types: list[int] = []
    add = BlasProducts.add

    def note(self: BlasProducts, context: object, weight: object, x: object) -> object:
        types.append(weight.type)
        return add(self, context, weight, x)

    monkeypatch.setattr(BlasProducts, "add", note)
    return types


LARGE, SMALL, FEW = (1024, (2048, 64)), (1024, (1024, 64)), (127, (8192, 256))


@pytest.mark.parametrize(("case", "n_added"), [(LARGE, 1), (SMALL, 0), (FEW, 0)])
def test_large_products_of_many_rows_go_to_openblas(
    backend: Backend, added: list[int], case: tuple[int, tuple[int, int]], n_added: int
) -> None:
    n_rows, shape = case
    backend.prefers_blas = lambda _type: True
    product(backend, stored(random(*shape), "F32")[0], random(n_rows, shape[1]))
    assert len(added) == n_added


def test_none_do_where_it_is_slower_or_not_here(
    backend: Backend, added: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, numbers = stored(random(2048, 64), "F32")
    x = random(1024, 64)
    product(backend, weight, x)
    monkeypatch.setattr(ggml.openblas, "_library", lambda: None)
    with Backend(load(), n_threads=1) as other:
        assert other.blas is None
        other.prefers_blas = lambda _type: True
        assert error(product(other, weight, x), exact(x, numbers)) < 1e-5
    assert added == []


@pytest.mark.parametrize(("by_blas", "is_preferred"), [(0.9, True), (1.1, True), (1.2, False)])
def test_the_best_of_some_trials_decides_once_for_a_type(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, by_blas: float, is_preferred: bool
) -> None:
    calls = []

    def seconds(self: ProductChoice, weights: Weights, *, use_blas: bool) -> float:
        calls.append(use_blas)
        disturbed = 9.0 * (len(calls) <= 2)
        return (by_blas if use_blas else 1.0) + disturbed

    monkeypatch.setattr(ProductChoice, "_seconds", seconds)
    choice = ProductChoice(backend)
    assert [choice(8), choice(8)] == [is_preferred] * 2
    assert calls == [False, True] * 3
    choice(1)
    assert len(calls) == 12


def test_a_trial_computes_with_both(backend: Backend, added: list[int]) -> None:
    choice = ProductChoice(backend)
    assert isinstance(choice(8), bool)
    assert added == [8] * 3


# ---- threads and failures


def test_openblas_takes_one_thread_until_the_last_user_is_done() -> None:
    n_threads = openblas._library().scipy_openblas_get_num_threads64_
    openblas._library().scipy_openblas_set_num_threads64_(2)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with openblas.one_thread():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with openblas.one_thread():
        thread.start()
        assert inside.wait(30)
    assert n_threads() == 1
    leave.set()
    thread.join()
    assert n_threads() == 2


@pytest.mark.parametrize("failure", [MemoryError("none left"), KeyboardInterrupt()])
def test_what_goes_wrong_in_a_product_is_raised(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    weight, numbers = stored(random(N_OUT, N_IN), "F32")
    x = random(20, N_IN)

    def fail(*_args: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(BlasProducts, "_widened", fail)
        with pytest.raises(type(failure)):
            product(backend, weight, x, way="blas_product")
    assert error(product(backend, weight, x, way="blas_product"), exact(x, numbers)) < 1e-6


def test_a_wrong_product_would_be_seen(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above notices one block of rows that is another's."""
    widened = BlasProducts._widened
    monkeypatch.setattr(
        BlasProducts, "_widened", lambda self, w, start, stop: widened(self, w, 0, stop - start)
    )
    weight, numbers = stored(random(N_OUT, N_IN), "F32")
    x = random(20, N_IN)
    assert error(product(backend, weight, x, way="blas_product"), exact(x, numbers)) > 0.1
