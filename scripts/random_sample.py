"""Writes the built-in sample bundle: the tiny random model of the tests, quantised to Q8_0.

PYTHONPATH=tests python scripts/random_sample.py
"""

import tempfile
from pathlib import Path

from oracle.checkpoint import write_checkpoint
from phi4mm.convert.convert import convert_checkpoint
from phi4mm.convert.part_type import PartTypes
from phi4mm.modelfile.ggml_type import GGMLType

SAMPLE = Path(__file__).parents[1] / "src" / "phi4mm" / "sample"


def main() -> None:
    for old in SAMPLE.glob("*.gguf"):
        old.unlink()
    types = PartTypes(decoder=GGMLType.Q8_0, mmproj=GGMLType.Q8_0, lora=GGMLType.Q8_0)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint("tiny", Path(folder) / "sample-random")
        report = convert_checkpoint(checkpoint, SAMPLE, types=types)
    for file in report.files:
        print(f"{file.path.name}: {file.n_bytes} bytes")


if __name__ == "__main__":
    main()
