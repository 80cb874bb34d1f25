"""Opens libllama and ggml and makes sure that they are what the declarations say.

The rest of the package reaches C only through the ``Library`` that ``load`` returns.  No model and
no file format is known here.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

from cffi import FFI

from phi4mm.errors import NativeError
from phi4mm.native import check, ggml_cdef
from phi4mm.native.carrier import ENVIRONMENT_VARIABLE, Carrier, find_carrier
from phi4mm.native.llama_cdef import DECLARATIONS, Declarations
from phi4mm.native.log import LogRelay

# A system without a compiler may lack it, and no wheel brings it.
_OPENMP_HINT = " (install OpenMP: apt install libgomp1, or dnf install libgomp)"


class Symbols:
    """The C functions and constants of several shared libraries, as attributes of one object."""

    def __init__(self, libraries: tuple[Any, ...]) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        for library in self._libraries:
            try:
                symbol = getattr(library, name)
            except AttributeError:
                continue
            setattr(self, name, symbol)
            return symbol
        raise AttributeError(f"no loaded library exports {name}")

    def __dir__(self) -> list[str]:
        """The names that were declared, whether or not a library has them."""
        return dir(self._libraries[0])


@dataclass(frozen=True, slots=True)
class Library:
    """An open, checked libllama with its ggml.

    Attributes:
        ffi: the cffi instance the declarations were read into.
        lib: C functions and enumeration constants, as attributes.
        carrier: what the library came from: a distribution's name, or ``PHI4MM_LLAMA_LIB``.
        version: the distribution's version and llama.cpp's own.
        path: the file that holds libllama.
        log: where the library's log lines go.
    """

    ffi: Any
    lib: Any
    carrier: str
    version: str
    path: str
    log: LogRelay


@functools.cache
def load() -> Library:
    """Open the native library, once in a process.

    The environment variable ``PHI4MM_LLAMA_LIB`` (a shared library, or a folder with libllama and
    ggml) wins over llama-cpp-python, which wins over xllamacpp.

    Raises:
        NativeError: no carrier is installed, it cannot be opened, or no known set of declarations
            fits it.
    """
    carrier = find_carrier(os.environ.get(ENVIRONMENT_VARIABLE))
    ffi, lib = open_carrier(carrier, DECLARATIONS)
    return _start(ffi, lib, carrier)


def open_carrier(carrier: Carrier, declarations: tuple[Declarations, ...]) -> tuple[FFI, Symbols]:
    """Open a carrier's libraries with the first set of declarations that fits.

    A carrier of a known version is held to the set written for it; any other is tried with all.

    Raises:
        NativeError: it cannot be opened, or none fits.
    """
    exact = [d for d in declarations if (d.package, d.version) == (carrier.name, carrier.version)]
    mismatches = []
    for candidate in exact or declarations:
        ffi = _declare(candidate)
        lib = _open(ffi, carrier)
        mismatch = check.layout_mismatch(ffi, lib)
        if mismatch is None:
            return ffi, lib
        mismatches.append(f"{candidate.package} {candidate.version} ({mismatch})")
    raise NativeError(
        "dlopen",
        detail=f"{_describe(carrier)} fits none of the known builds: {', '.join(mismatches)}",
    )


def _declare(declarations: Declarations) -> FFI:
    ffi = FFI()
    ffi.cdef(ggml_cdef.CDEF)
    ffi.cdef(declarations.cdef)
    ffi.cdef(check.CDEF)
    return ffi


def _open(ffi: FFI, carrier: Carrier) -> Symbols:
    try:
        return Symbols(tuple(ffi.dlopen(str(file)) for file in carrier.files))
    except OSError as error:
        reason = str(error).partition("  Additionally,")[0]  # cffi then tells what else it tried
        hint = _OPENMP_HINT if "libgomp" in reason else ""
        raise NativeError("dlopen", detail=f"{_describe(carrier)}: {reason}{hint}") from error


def _start(ffi: FFI, lib: Symbols, carrier: Carrier) -> Library:
    """Initialise the library, and compute something with it.

    Its log and its backends belong to the whole process, so this is done once.
    """
    log = LogRelay(ffi)
    lib.llama_log_set(log.callback, ffi.NULL)
    # Builds that load their backends at run time would otherwise look in the working directory.
    if lib.ggml_backend_reg_count() == 0:
        lib.ggml_backend_load_all_from_path(os.fsencode(carrier.path.parent))
    lib.llama_backend_init()
    check.compute(ffi, lib, _describe(carrier))
    llama_version = ffi.string(lib.llama_version()).decode()
    version = f"llama.cpp {llama_version}"
    if carrier.version is not None:
        version = f"{carrier.version} ({version})"
    return Library(ffi, lib, carrier.name, version, str(carrier.path), log)


def _describe(carrier: Carrier) -> str:
    return f"{carrier.name} {carrier.version or ''}".rstrip() + f" at {carrier.path}"
