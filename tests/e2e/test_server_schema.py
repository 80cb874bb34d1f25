"""Whatever the OpenAPI document allows, and what it does not, is answered without a 5xx."""

import shutil
import subprocess

import pytest
from server_process import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("schemathesis") is None, reason="needs schemathesis"),
]


def test_schemathesis_finds_no_failure_of_the_server():
    server = ServerProcess("-np", "2")
    try:
        server.wait_ready()
        done = subprocess.run(
            ["schemathesis", "run", f"{server.url}/openapi.json", "--url", server.url,
             "--checks", "not_a_server_error", "--phases", "coverage,fuzzing", "-n", "5"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    finally:
        server.stop()
    assert "Traceback" not in "".join(server.log)
