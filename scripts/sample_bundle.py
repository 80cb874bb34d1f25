"""Makes the built-in sample from the checkpoint that ``python -m training.export`` writes.

Replaces the bundle inside the package (all of it Q8_0), the file that says what it is, and the
record of its answers that the tests compare with.

python scripts/sample_bundle.py CHECKPOINT
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

from phi4mm.convert import TYPES, PartTypes, convert_checkpoint
from phi4mm.modelfile.bundle import Bundle

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "src" / "phi4mm" / "sample"
NAME = "phi4mm-sample"
MOST_BYTES = 25_000_000
WHAT = (
    "a model of {millions:.0f} million weights trained on synthetic data: it knows a few facts, "
    "calls tools, adds and subtracts up to 20, writes down a hundred spoken words and digits, "
    "reads short print, and counts and names coloured shapes in pictures, mostly rightly; nothing "
    "else"
)
# What a person needs to make items of the same kind.
SHARED = ("prompts", "picture_questions", "print_words", "spoken_words", "digits", "tools")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    replace_bundle(parser.parse_args().checkpoint)
    write_about()
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    import sample_record

    answers = sample_record.write_record()
    print(f"on record as trained: {', '.join(sample_record.trained_abilities(answers)) or 'none'}")


def replace_bundle(checkpoint: Path) -> None:
    q8_0 = TYPES["q8_0"]
    with tempfile.TemporaryDirectory() as folder:
        # The files are named after the checkpoint's folder.
        named = shutil.copytree(checkpoint, Path(folder) / NAME)
        report = convert_checkpoint(named, Path(folder) / "out", types=PartTypes(q8_0, q8_0, q8_0))
        n_bytes = sum(file.n_bytes for file in report.files)
        assert n_bytes <= MOST_BYTES, f"{n_bytes} bytes, at most {MOST_BYTES} ship"
        for old in SAMPLE.glob("*.gguf"):
            old.unlink()
        for file in report.files:
            shutil.copy(file.path, SAMPLE)
            print(f"{file.path.name}: {file.n_bytes} bytes")
    print(f"{n_bytes} bytes, bundle id {report.bundle_id}")


def write_about() -> None:
    with Bundle.open(SAMPLE) as bundle:
        parts = [bundle.decoder, bundle.mmproj, *bundle.adapters.values()]
        files = [part.file for part in parts if part is not None]
        n_weights = sum(
            math.prod(tensor.shape) for file in files for tensor in file.tensors.values()
        )
    vocabulary = json.loads((ROOT / "training" / "vocabulary.json").read_text(encoding="utf-8"))
    about = {
        "what": WHAT.format(millions=n_weights / 1e6),
        **{name: vocabulary[name] for name in SHARED},
    }
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (SAMPLE / "about.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
