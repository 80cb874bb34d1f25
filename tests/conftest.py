"""Fixtures shared by all tests: checkpoints, media, bundles and models, once per session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oracle.checkpoint import Layout, write_checkpoint
from oracle.media import write_media

if TYPE_CHECKING:
    from parity.fixtures import BundleDir, CheckpointDir, OpenModel, Types
    from phi4mm import Phi4MM

# What this machine has compiled must not decide what the tests see.
os.environ["PHI4MM_INT16"] = "0"


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> CheckpointDir:
    """Gives the folder of a tiny checkpoint by name and layout."""

    @cache
    def write(name: str, layout: Layout) -> Path:
        return write_checkpoint(name, tmp_path_factory.mktemp(f"{name}-{layout}"), layout)

    # ``cache`` alone would take a default that is left out and one that is given for two keys.
    return lambda name, layout="ms": write(name, layout)


@pytest.fixture(scope="session")
def media_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pictures and clips of the goldens."""
    return write_media(tmp_path_factory.mktemp("media"))


@pytest.fixture(scope="session")
def bundle_dir(
    checkpoint_dir: CheckpointDir, tmp_path_factory: pytest.TempPathFactory
) -> BundleDir:
    """Gives the folder of a bundle converted from a tiny checkpoint."""
    from phi4mm.convert import TYPES, PartTypes, convert_checkpoint

    f32, q8_0 = TYPES["f32"], TYPES["q8_0"]
    part_types = {
        "f32": PartTypes(f32, f32, f32),
        "default": PartTypes(),
        "q8_0": PartTypes(q8_0, q8_0, q8_0),
    }

    @cache
    def convert(name: str, layout: Layout, types: Types) -> Path:
        folder = tmp_path_factory.mktemp(f"{name}-{layout}-{types}")
        convert_checkpoint(checkpoint_dir(name, layout), folder, types=part_types[types])
        return folder

    return lambda name, layout="ms", types="f32": convert(name, layout, types)


@pytest.fixture(scope="session")
def tiny_path(bundle_dir: BundleDir) -> Path:
    """A bundle of random weights, for tests of what does not depend on what a model knows."""
    return bundle_dir("tiny", types="q8_0")


@pytest.fixture(scope="session")
def open_model(bundle_dir: BundleDir) -> Iterator[OpenModel]:
    """Gives a loaded model; with F32 weights its cache is F32 too, else the default."""
    from parity.fixtures import N_THREADS
    from phi4mm import Phi4MM

    with ExitStack() as stack:

        @cache
        def load(name: str, layout: Layout, types: Types) -> Phi4MM:
            kv_type = "f32" if types == "f32" else "f16"
            folder = bundle_dir(name, layout, types)
            return stack.enter_context(Phi4MM(folder, n_threads=N_THREADS, kv_type=kv_type))

        yield lambda name, layout="ms", types="f32": load(name, layout, types)
