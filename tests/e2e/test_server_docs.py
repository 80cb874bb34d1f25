"""The examples of docs/server.md work as they stand there."""

import shutil
import subprocess

import pytest
from doc_examples import examples
from server_process import ServerProcess

EXAMPLES = [e.text for e in examples("docs/server.md") if e.language == "sh" and e.not_run is None]

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
