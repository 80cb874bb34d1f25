"""Puts a golden's prompt to a loaded model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parity.goldens import Golden
from phi4mm import Phi4MM


def logits_of(model: Phi4MM, golden: Golden, media_dir: Path) -> np.ndarray:
    """Logits (n_tokens, n_vocab) at every position, media read from their files.

    A text prompt's adapter is forced; with media the model must choose it.
    """
    has_media = golden.images or golden.audios
    return model.logits(
        golden.prompt,
        images=[media_dir / name for name in golden.images],
        audios=[media_dir / name for name in golden.audios],
        adapter="auto" if has_media else golden.adapter,
    )
