"""What the end-to-end tests work on: the bundle and the media that ship with the package."""

import pytest

from phi4mm.cli.options import sample_bundle


@pytest.fixture(scope="session")
def sample_path():
    """The built-in bundle's folder."""
    return sample_bundle()


@pytest.fixture(scope="session")
def sample_media(sample_path):
    """Folder of a picture and a clip."""
    return sample_path / "media"
