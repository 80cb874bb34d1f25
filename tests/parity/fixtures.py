"""What the fixtures of ``conftest.py`` give: functions that make a thing once and return it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from oracle.checkpoint import Layout
from phi4mm import Phi4MM

# "f32" for parity; "default" for what `phi4mm convert` makes when no type is given; "q8_0" for
# all of it in Q8_0, as the built-in sample is.
Types = Literal["f32", "default", "q8_0"]
# One: threads of ggml wait for each other by spinning, which on a busy machine takes many times
# longer than the work.
N_THREADS = 1


class CheckpointDir(Protocol):
    def __call__(self, name: str, layout: Layout = "ms") -> Path: ...


class BundleDir(Protocol):
    def __call__(self, name: str, layout: Layout = "ms", types: Types = "f32") -> Path: ...


class OpenModel(Protocol):
    def __call__(self, name: str, layout: Layout = "ms", types: Types = "f32") -> Phi4MM: ...
