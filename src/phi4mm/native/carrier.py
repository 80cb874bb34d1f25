"""Where libllama and ggml come from: a path, llama-cpp-python, or xllamacpp.

Nothing is imported or loaded here; the answer is a list of files to open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from phi4mm.errors import NativeError
from phi4mm.native.llama_cdef import DECLARATIONS

ENVIRONMENT_VARIABLE = "PHI4MM_LLAMA_LIB"

# Dependencies first, so that each library finds those it needs already loaded.
_GGML_STEMS = ("ggml-base", "ggml-cpu", "ggml")


@dataclass(frozen=True, slots=True)
class Carrier:
    """The files that hold libllama and ggml.

    Attributes:
        name: the distribution, or the environment variable that named the path.
        version: the distribution's version; None for a path.
        files: shared libraries in the order to open them; the last one holds libllama.
    """

    name: str
    version: str | None
    files: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The library that holds libllama."""
        return self.files[-1]


def find_carrier(override: str | None) -> Carrier:
    """The carrier to use: the given path, else llama-cpp-python, else xllamacpp.

    llama-cpp-python goes first because it is built on the machine it runs on, perhaps for its GPU.

    Args:
        override: a shared library, or a folder that holds libllama and the ggml libraries.

    Raises:
        NativeError: the path holds no library, an installed carrier lacks its library, or no
            carrier is installed.
    """
    if override:
        return Carrier(ENVIRONMENT_VARIABLE, None, _files_at(Path(override)))
    carrier = _llama_cpp_python() or _xllamacpp()
    if carrier is None:
        commands = " or ".join(f"pip install {d.package}=={d.version}" for d in DECLARATIONS)
        raise NativeError("dlopen", detail=f"no libllama is installed: {commands}")
    return carrier


def _llama_cpp_python() -> Carrier | None:
    found = _installed("llama-cpp-python", "llama_cpp")
    if found is None:
        return None
    installed, folder = found
    return Carrier("llama-cpp-python", installed, _files_at(folder / "lib"))


def _xllamacpp() -> Carrier | None:
    found = _installed("xllamacpp", "xllamacpp")
    if found is None:
        return None
    installed, folder = found
    extension = next(iter(sorted(folder.glob("xllamacpp.*.so"))), None)
    if extension is None:
        raise NativeError("dlopen", detail=f"{folder} holds no xllamacpp.*.so: reinstall xllamacpp")
    return Carrier("xllamacpp", installed, (extension,))


def _installed(distribution: str, module: str) -> tuple[str, Path] | None:
    """The version and package folder of an installed distribution, without importing it."""
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        return None
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise NativeError("dlopen", detail=f"{distribution} {installed} has no module {module}")
    return installed, Path(spec.origin).parent


def _files_at(path: Path) -> tuple[Path, ...]:
    """The libraries of a folder, or the given one after the ggml libraries beside it."""
    if path.is_file():
        return (*_ggml_beside(path.parent), path)
    if not path.is_dir():
        raise NativeError("dlopen", detail=f"{path} is neither a shared library nor a folder")
    llama = _library(path, "llama")
    if llama is None:
        raise NativeError("dlopen", detail=f"the folder {path} holds no libllama")
    return (*_ggml_beside(path), llama)


def _ggml_beside(folder: Path) -> Iterator[Path]:
    for stem in _GGML_STEMS:
        if (library := _library(folder, stem)) is not None:
            yield library


def _library(folder: Path, stem: str) -> Path | None:
    """The library of this name, its shortest spelling first: libx.so before libx.so.0."""
    patterns = (f"lib{stem}.so*", f"lib{stem}.*dylib", f"{stem}.dll")
    names = [match for pattern in patterns for match in folder.glob(pattern)]
    return min(names, key=lambda name: len(name.name), default=None)
