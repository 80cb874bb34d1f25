"""Training on from a bundle: its weights come back under the checkpoint's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from training.from_bundle import weights_of

from phi4mm.convert.checkpoint import open_checkpoint
from phi4mm.convert.rules import drops
from phi4mm.modelfile.bundle import Bundle


def test_a_bundle_gives_back_the_checkpoint_it_was_made_of(
    checkpoint_dir: Callable[..., Path], bundle_dir: Callable[..., Path]
) -> None:
    source = open_checkpoint(checkpoint_dir("tiny", "ms")).tensors
    with Bundle.open(bundle_dir("tiny", "ms")) as bundle:
        weights = weights_of(bundle)
        assert bundle.mmproj is not None
        assert bundle.mmproj.vision is not None
        n_vision = bundle.mmproj.vision.n_layer
    dead = tuple(drop.prefix for drop in drops(n_vision, n_vision + 1))
    assert weights.keys() == {name for name in source if not name.startswith(dead)}
    for name, values in weights.items():
        if ".conv.glu." in name and not name.endswith("weight"):
            continue  # kept as a sum
        tensor = source[name]
        stored = tensor.read(0, tensor.n_rows).reshape(values.shape)
        np.testing.assert_array_equal(values, stored, err_msg=name)


def test_the_three_biases_of_a_gate_come_back_as_their_sum(
    checkpoint_dir: Callable[..., Path], bundle_dir: Callable[..., Path]
) -> None:
    source = open_checkpoint(checkpoint_dir("tiny", "ms")).tensors
    with Bundle.open(bundle_dir("tiny", "ms")) as bundle:
        weights = weights_of(bundle)
    stem = "model.embed_tokens_extend.audio_embed.encoder.encoders.0.conv.glu."

    def total(of: Callable[[str], np.ndarray]) -> np.ndarray:
        halves = [of(f"{stem}{name}").reshape(-1) for name in ("b1", "b2")]
        return of(f"{stem}ext_pw_conv_1d.bias").reshape(-1) + np.concatenate(halves)

    def stored(name: str) -> np.ndarray:
        return source[name].read(0, source[name].n_rows)

    assert stored(f"{stem}b1").any()
    np.testing.assert_array_equal(total(weights.__getitem__), total(stored))
