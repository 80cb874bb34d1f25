"""The examples of docs/pull.md and docs/export.md work as they stand there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hub_server import Hub, serve

DOCS = Path(__file__).parents[2] / "docs"
CHECKPOINT = "microsoft/Phi-4-multimodal-instruct"
READY = "someone/Phi-4-multimodal-instruct-GGUF"


def examples(page):
    return re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run_example(script, folder, env):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "set -e\n" + script], cwd=folder, capture_output=True, text=True,
        timeout=200, env={**os.environ, "PATH": path, "HOME": str(folder), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.fixture(scope="module")
def pull_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pull")


@pytest.mark.parametrize("number", range(len(examples("pull.md"))))
def test_pull(number, checkpoint_dir, sample_path, pull_folder):
    """In order: what one leaves in the cache the next one finds."""
    script = examples("pull.md")[number]
    repo, folder = (READY, sample_path) if READY in script else (CHECKPOINT, checkpoint_dir("tiny"))
    with serve(Hub(repo, folder)) as hub:
        cache = str(pull_folder / "cache")
        run_example(script, pull_folder, {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": cache})
    if "HF_HUB_OFFLINE=1" in script:
        assert not hub.requests


@pytest.mark.parametrize("number", range(len(examples("export.md"))))
def test_export(number, tmp_path, sample_path):
    shutil.copytree(sample_path, tmp_path / "phi4mm-q4")
    run_example(examples("export.md")[number], tmp_path, {})
