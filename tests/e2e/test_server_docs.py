"""The examples of docs/server.md work as they stand there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from server_process import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture(scope="module")
def server():
    server = ServerProcess()
    server.wait_ready()
    yield server
    server.stop()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(server, number, tmp_path, sample_media):
    for file in sample_media.iterdir():
        shutil.copy(file, tmp_path)
    script = "set -e\n" + EXAMPLES[number].replace("http://localhost:8080", server.url)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
