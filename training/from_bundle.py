"""A bundle's weights to train on from: python -m training.from_bundle BUNDLE RUN/start.safetensors.

Where a run directory has that file, its stages begin from it instead of the initial weights. What
a bundle does not hold (the dead layers, the heads that are thrown away) begins anew. Needs the
product's ``test`` extra, no torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from phi4mm.convert.rules import (
    Rule,
    adapter_rules,
    audio_rules,
    decoder_rules,
    vision_rules,
)
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.reader import GGUFFile

Weights = NDArray[Any]


def stored(file: GGUFFile, rules: Iterator[Rule]) -> Iterator[tuple[str, Weights]]:
    """Each source tensor of the rules as the file holds it, float32, axes of length one dropped."""
    for rule in rules:
        info = file.tensors[rule.target]
        kind = GGMLQuantizationType(int(info.ggml_type))
        values = np.asarray(dequantize(file.data(rule.target), kind), np.float32)
        first, *rest = rule.sources
        yield first, values
        for name in rest:  # their sum is in the first
            yield name, np.zeros(len(values) // 2, np.float32)


def weights_of(bundle: Bundle) -> dict[str, Weights]:
    """The weights of a whole bundle under their names in the original checkpoint."""
    assert bundle.mmproj is not None, "the bundle has no mmproj"
    n_layer = bundle.decoder.hparams.n_layer
    vision, audio = bundle.mmproj.vision, bundle.mmproj.audio
    parts = [
        (bundle.decoder.file, decoder_rules(n_layer)),
        (bundle.mmproj.file, vision_rules(vision.n_layer)),
        (bundle.mmproj.file, audio_rules(audio.n_layer)),
        *((part.file, adapter_rules(n_layer, name)) for name, part in bundle.adapters.items()),
    ]
    return {name: np.ascontiguousarray(w) for part in parts for name, w in stored(*part)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    with Bundle.open(arguments.bundle) as bundle:
        save_file(weights_of(bundle), str(arguments.out))


if __name__ == "__main__":
    main()
