"""Finding, opening and checking the native library, and what becomes of its log."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_decoder import weights, write_decoder

from phi4mm.errors import NativeError
from phi4mm.native import carrier as carrier_module
from phi4mm.native import check
from phi4mm.native.carrier import Carrier, find_carrier
from phi4mm.native.library import Symbols, load, open_carrier
from phi4mm.native.llama_cdef import DECLARATIONS
from phi4mm.native.log import LogRelay


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


LOAD = "from phi4mm.native.library import load; library = load(); "


def test_the_library_says_what_it_is() -> None:
    library = load()
    assert library.carrier in library.version or "llama.cpp" in library.version
    assert Path(library.path).is_file()
    assert load() is library


def test_loading_prints_nothing(tmp_path: Path) -> None:
    model_path = write_decoder(tmp_path / "decoder.gguf", weights(seed=1))
    code = f"from phi4mm.native.llama import Model; Model({str(model_path)!r}).close()"
    result = run_python(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/place", "/no/such/place is neither a shared library nor a folder"),
        (str(Path(__file__).parent), "holds no libllama"),
        (__file__, "test_native_library.py: cannot load library"),
    ],
)
def test_a_wrong_library_path_is_named(path: str, message: str) -> None:
    result = run_python(LOAD, PHI4MM_LLAMA_LIB=path)
    assert result.returncode == 1
    assert "phi4mm.errors.NativeError" in result.stderr
    assert message in result.stderr


def test_a_library_that_is_not_libllama_is_named() -> None:
    numpy_library = next(Path(np.__file__).parent.rglob("*.so"))
    with pytest.raises(NativeError, match=r"fits none .* \(no loaded library exports \w+\)"):
        open_carrier(find_carrier(str(numpy_library)), DECLARATIONS)


@pytest.mark.parametrize("name", ["", "libllama.so"])
def test_a_library_can_be_given_as_a_folder_or_a_file(name: str, tmp_path: Path) -> None:
    for link in ("libllama.so", "libggml.so", "libggml-base.so.0"):
        (tmp_path / link).symlink_to(load().path)
    code = LOAD + "print(library.carrier, library.path, library.lib.ggml_backend_dev_count() > 0)"
    result = run_python(code, PHI4MM_LLAMA_LIB=str(tmp_path / name))
    expected = ["PHI4MM_LLAMA_LIB", str(tmp_path / "libllama.so"), "True"]
    assert result.stdout.split() == expected, result.stderr


def test_symbols_are_looked_up_in_every_library() -> None:
    symbols = Symbols((SimpleNamespace(llama=1), SimpleNamespace(llama=2, ggml=3)))
    assert (symbols.llama, symbols.ggml) == (1, 3)
    with pytest.raises(AttributeError, match="no loaded library exports gguf"):
        _ = symbols.gguf


def test_no_carrier_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "_installed", lambda *_: None)
    with pytest.raises(NativeError, match=r"pip install xllamacpp==.* or pip install llama-cpp-"):
        find_carrier(None)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"xllamacpp"}, "xllamacpp"),
        ({"llama-cpp-python"}, "llama-cpp-python"),
        ({"llama-cpp-python", "xllamacpp"}, "llama-cpp-python"),
    ],
)
def test_a_native_build_wins(
    installed: set[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("lib/libllama.so", "lib/libggml.so.0", "lib/libggml-base.so", "xllamacpp.abi3.so"):
        (tmp_path / name).touch()

    def fake_installed(distribution: str, _module: str) -> tuple[str, Path] | None:
        return ("1.0", tmp_path) if distribution in installed else None

    monkeypatch.setattr(carrier_module, "_installed", fake_installed)
    assert find_carrier(None).name == expected


def test_the_libraries_of_a_folder_are_opened_dependencies_first(tmp_path: Path) -> None:
    names = ("libllama.so", "libllama.so.0", "libggml.so", "libggml-base.so.0", "libggml-cpu.so")
    for name in names:
        (tmp_path / name).touch()
    expected = ["libggml-base.so.0", "libggml-cpu.so", "libggml.so", "libllama.so"]
    assert [file.name for file in find_carrier(str(tmp_path)).files] == expected
    assert [f.name for f in find_carrier(str(tmp_path / "libllama.so.0")).files][-1] == (
        "libllama.so.0"
    )


def loaded_carrier() -> Carrier:
    return find_carrier(os.environ.get("PHI4MM_LLAMA_LIB"))


def has_moe_cache_size(ffi: Any) -> bool:
    return "moe_cache_size" in dict(ffi.typeof("struct llama_context_params").fields)


def test_declarations_of_another_build_are_refused() -> None:
    fitting = has_moe_cache_size(load().ffi)
    others = tuple(d for d in DECLARATIONS if ("moe_cache_size" in d.cdef) != fitting)
    with pytest.raises(NativeError) as caught:
        open_carrier(loaded_carrier(), others)
    message = str(caught.value)
    assert f"{others[0].package} {others[0].version} (llama_context_params." in message
    assert f"{loaded_carrier().name} {loaded_carrier().version or ''}".strip() in message


def test_a_carrier_of_unknown_version_gets_the_declarations_that_fit() -> None:
    unknown = dataclasses.replace(loaded_carrier(), name="other", version="9")
    for declarations in (DECLARATIONS, DECLARATIONS[::-1]):
        ffi, _ = open_carrier(unknown, declarations)
        assert has_moe_cache_size(ffi) == has_moe_cache_size(load().ffi)


@pytest.mark.parametrize(
    ("struct", "field", "message"),
    [
        ("llama_model_params", "n_gpu_layers", "n_gpu_layers is -1 by default, expected 7"),
        ("llama_context_params", "swa_full", "swa_full is 1 by default, expected 7"),
        ("llama_context_params", "abort_callback", "abort_callback is None by default, expected 7"),
    ],
)
def test_every_kind_of_default_is_compared(
    struct: str, field: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check._DEFAULTS[struct], field, 7)
    assert message in str(check.layout_mismatch(load().ffi, load().lib))


def test_a_wrong_block_size_or_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load()
    monkeypatch.setitem(check._BLOCKS, "Q8_0", (36, 32))
    assert "Q8_0 has (bytes, elements) (34, 32), expected (36, 32)" in str(
        check.layout_mismatch(library.ffi, library.lib)
    )
    check.compute(library.ffi, library.lib, "the library")
    monkeypatch.setattr(check, "_product", lambda *_: [0.0] * 4)
    with pytest.raises(NativeError, match="the library computes"):
        check.compute(library.ffi, library.lib, "the library")


def test_pieces_of_a_log_line_are_joined(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phi4mm.native")
    relay = LogRelay(load().ffi)
    with relay.errors() as lines:
        for level, text in (
            (2, "one\n"),
            (3, "two"),
            (5, " and"),
            (5, " three\nfour\n"),
            (2, "five"),
            (4, "x\n"),
        ):
            relay.feed(level, text)
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("DEBUG", "one"),
        ("WARNING", "two and three"),
        ("WARNING", "four"),
        ("DEBUG", "five"),
        ("ERROR", "x"),
    ]
    assert lines == ["x"]


def test_an_interrupt_in_the_log_comes_out_of_the_native_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay = LogRelay(load().ffi)

    def interrupted(_level: int, _text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(relay, "feed", interrupted)
    with pytest.raises(KeyboardInterrupt), relay.errors():
        relay.callback(2, load().ffi.new("char[]", b"line"), load().ffi.NULL)
    with relay.errors():
        pass
