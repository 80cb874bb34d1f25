"""Writes a tiny checkpoint in the published layout, to try everything without the weights.

    python scripts/tiny_checkpoint.py DIR

Random weights, some megabytes: the one that the tests convert.  What it answers means nothing.
Needs numpy and safetensors, which `pip install 'phi4mm[test]'` brings.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracle.checkpoint import write_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random checkpoint.")
    parser.add_argument("folder", metavar="DIR", type=Path, help="must not exist")
    folder = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} exists: give another name")
    folder.mkdir(parents=True)
    write_checkpoint("tiny", folder, "ms")
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {n_bytes / 1e6:.1f} MB, random weights")


if __name__ == "__main__":
    main()
