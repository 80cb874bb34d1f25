"""Runs a command and prints its wall time and its peak memory (Linux).

    python scripts/peak_memory.py phi4mm convert CHECKPOINT -o DIR

Anonymous memory is what the process needs; mapped files count in the resident set as well, but the
system can drop their pages.
"""

import subprocess
import sys
import time
from pathlib import Path

FIELDS = ("RssAnon", "VmRSS")


def read_kib(pid: int) -> dict[str, int]:
    """Memory of a process in KiB; empty once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[name].split()[0]) for name in FIELDS if name in values}


def main() -> int:
    started = time.monotonic()
    process = subprocess.Popen(sys.argv[1:])
    peak = dict.fromkeys(FIELDS, 0)
    while process.poll() is None:
        for name, kib in read_kib(process.pid).items():
            peak[name] = max(peak[name], kib)
        time.sleep(0.02)
    seconds = time.monotonic() - started
    print(
        f"{seconds:.1f} s, peak anonymous {peak['RssAnon'] / 1024:.0f} MiB, "
        f"peak resident {peak['VmRSS'] / 1024:.0f} MiB",
        file=sys.stderr,
    )
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
