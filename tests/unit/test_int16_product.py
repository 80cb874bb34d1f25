"""Products in 16-bit integers: how exact they are, when they are used, and what can go wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from test_blas_product import error, exact, product, random, stored

from phi4mm.errors import NativeError
from phi4mm.native import int16_product, openblas
from phi4mm.native.ggml import Backend
from phi4mm.native.int16_product import Int16Kernel
from phi4mm.native.library import load

Array = NDArray[np.float32]


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Int16Kernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PHI4MM_INT16", "1")
        int16_product.load.cache_clear()
        assert int16_product.load() is None
        try:
            path = int16_product.build()
        except NativeError as reason:
            if "VNNI" in str(reason) or ": no cc:" in str(reason):
                pytest.skip(str(reason))
            raise
        assert [*path.parent.iterdir()] == [path]
        found = int16_product.load()
        assert found is not None
        yield found
    int16_product.load.cache_clear()


def multiplied(kernel: Int16Kernel, x: Array, weights: Array) -> Array:
    out = np.full((len(x), len(weights)), np.nan, np.float32)
    kernel.multiply(kernel.quantised(x), weights, out)
    return out


def off(found: Array, x: Array, weights: Array) -> float:
    """The error over the result, root mean square."""
    right = exact(x, weights)
    return float(np.sqrt(np.square(found - right).mean() / np.square(right).mean()))


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 5), (130, 1152, 257), (97, 260, 16)])
def test_a_product_is_off_by_less_than_a_thousandth(
    kernel: Int16Kernel, shape: tuple[int, int, int]
) -> None:
    n_rows, n_in, n_out = shape
    x, weights = random(n_rows, n_in), random(n_out, n_in) / 50
    assert off(multiplied(kernel, x, weights), x, weights) < 6e-4
    x[:, ::100] *= 50  # as some channels of real encoders are
    assert off(multiplied(kernel, x, weights), x, weights) < 1e-3


def test_the_largest_sums_do_not_overflow(kernel: Int16Kernel) -> None:
    x, weights = np.full((6, 512), 3.0, np.float32), np.full((16, 512), -7.0, np.float32)
    np.testing.assert_allclose(multiplied(kernel, x, weights), -21.0 * 512, rtol=1e-6)


def test_zeros_and_parts_of_larger_arrays(kernel: Int16Kernel) -> None:
    x, weights = random(20, 64), random(40, 96)
    x[3] = 0
    out = np.full((20, 100), np.nan, np.float32)
    kernel.multiply(kernel.quantised(x), weights[4:30, :64], out[:, 50:76])
    assert off(out[:, 50:76], x, weights[4:30, :64]) < 6e-4
    assert (out[3, 50:76] == 0).all()
    assert np.isnan(out[:, :50]).all()
    assert np.isnan(out[:, 76:]).all()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_it_multiplies_with_quantised_weights_only(n_threads: int) -> None:
    if not openblas.is_here():
        pytest.skip("numpy has another library for products")
    x = random(130, 96)
    with Backend(load(), n_threads=n_threads) as backend:
        for name in ("Q8_0", "Q4_0"):
            weight, numbers = stored(random(700, 96), name)
            found = product(backend, weight, x, way="blas_product")
            assert 1e-5 < error(found, exact(x, numbers)) < 2e-3
        weight, numbers = stored(random(700, 96), "F16")
        assert error(product(backend, weight, x, way="blas_product"), exact(x, numbers)) < 1e-6


def test_it_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHI4MM_INT16", "off")
    int16_product.load.cache_clear()
    assert int16_product.load() is None
    monkeypatch.undo()
    int16_product.load.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "words"), [("false", "false ended"), ("true", "dlopen"), ("none", "no none")]
)
def test_a_compiler_that_does_not_do_its_work(
    monkeypatch: pytest.MonkeyPatch, compiler: str, words: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(NativeError, match=words):
        int16_product.build()


def test_a_damaged_kernel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = int16_product.kernel_path()
    path.parent.mkdir()
    path.write_bytes(b"no library")
    int16_product.load.cache_clear()
    with pytest.raises(NativeError, match="delete it"):
        int16_product.load()
    monkeypatch.undo()
    int16_product.load.cache_clear()
