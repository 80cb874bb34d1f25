"""What the end-to-end tests work on."""

from pathlib import Path

import pytest

from phi4mm.cli.options import sample_bundle


@pytest.fixture(scope="session")
def sample_path():
    """The built-in bundle's folder."""
    return sample_bundle()


@pytest.fixture(scope="session")
def sample_media():
    """Folder of a picture of 640x400 pixels and a clip of 3 s, both of the tests' own."""
    return Path(__file__).parents[1] / "data" / "media"
