"""The types that `phi4mm convert` takes by default: F16 decoder, Q8_0 encoders and adapters.

And an F16 cache.  Weights are rounded, so only the direction of the last logits is compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.answer import logits_of
from parity.fixtures import OpenModel
from parity.goldens import NAMES, cases, cosine

MIN_COSINE = 0.998


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in NAMES for case in cases(name)])
def test_default_types_keep_the_direction_of_the_last_logits(
    open_model: OpenModel, media_dir: Path, name: str, case: str
) -> None:
    golden = cases(name)[case]
    logits = logits_of(open_model(name, types="default"), golden, media_dir)
    assert cosine(logits[-1], golden.last) >= MIN_COSINE
