"""The machine a measurement was made on, and what its memory holds."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from phi4mm import __version__


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and when, and with what.

    Attributes:
        cpu: the processor's name.
        n_cores: logical cores this process may use.
        n_threads: threads that computed.
        memory_bytes: of the machine; None where it cannot be told.
        system: the operating system.
        library: the native library and its version.
        version: of this package.
        made: UTC, ISO 8601.
    """

    cpu: str
    n_cores: int
    n_threads: int
    memory_bytes: int | None
    system: str
    library: str
    version: str
    made: str

    @classmethod
    def this(cls, n_threads: int) -> Machine:
        """This machine, now."""
        from phi4mm.native.library import load

        library = load()
        return cls(
            cpu=cpu_name(),
            n_cores=n_cores(),
            n_threads=n_threads,
            memory_bytes=memory_bytes(),
            system=platform.system(),
            library=f"{library.carrier} {library.version}",
            version=__version__,
            made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


def n_cores() -> int:
    """Logical cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def memory_bytes() -> int | None:
    """Memory of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def anonymous_bytes() -> int | None:
    """Memory of this process that no file backs; None where the system does not say.

    Mapped weights are not in it: the system can drop and read them again.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    lines = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return next((int(line.split()[1]) * 1024 for line in lines), None)
