"""The weights and media drawn here are, to the last bit, those that the reference was given."""

from __future__ import annotations

import json

import pytest

from oracle.checkpoint import draw_tensors, fingerprint
from oracle.media import draw_media
from oracle.sizes import SIZES
from parity.goldens import FOLDER, NAMES


@pytest.mark.parametrize("name", NAMES)
def test_drawn_inputs_are_those_of_the_goldens(name: str) -> None:
    drawn = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["drawn"]
    assert fingerprint(draw_tensors(SIZES[name])) == drawn["weights"]
    assert fingerprint(draw_media()) == drawn["media"]
