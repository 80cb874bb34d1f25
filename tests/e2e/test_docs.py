"""Every example of the pages works as it stands there, on a tiny random model.

Blocks with a comment ``<!-- not run: why -->`` above them are skipped, with the reason; their flags
are checked all the same.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_examples import PRELUDE, examples, pages, write_inputs, write_programs

from phi4mm.cli.main import build_parser

# Run by tests of their own, against a server, a hub, or other programs' formats.
ELSEWHERE = {
    "docs/server.md": "test_server_docs.py",
    "docs/pull.md": "test_pull_export_docs.py",
    "docs/export.md": "test_pull_export_docs.py",
}
ALL = [example for page in pages() for example in examples(page)]
RUNNABLE = [
    example
    for example in ALL
    if example.language in ("sh", "python") and example.page not in ELSEWHERE
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, bundle_dir, checkpoint_dir, sample_media):
    folder = tmp_path_factory.mktemp("inputs")
    bundle = bundle_dir("tiny", "ms", "default")
    write_inputs(folder, bundle, checkpoint_dir("tiny"), sample_media)
    write_programs(folder / "bin", sys.executable)
    _run(
        "printf '/set n=4\\nHello\\n/save talk.json\\n' | phi4mm chat -m phi4mm-q8", folder, folder
    )
    for command in (
        "phi4mm imatrix bundle -f calibration.txt -o imatrix.gguf -c 128",
        "phi4mm perplexity bundle -f text.txt --chunks 1 -c 128 --save-logits base.bin",
    ):
        _run(command, folder, folder)
    return folder


def _run(script, folder, inputs):
    path = f"{inputs / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{script}"],
        cwd=folder, capture_output=True, text=True, timeout=500, check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": path, "HOME": str(folder), "NO_COLOR": "1"},
    )  # fmt: skip


def stage(example, inputs, folder):
    """The inputs, but for what the example makes itself."""
    for path in inputs.iterdir():
        if path.name == "bin" or example.makes(path.name):
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy(path, folder)


@pytest.mark.parametrize("example", RUNNABLE, ids=str)
def test_an_example_works(example, inputs, tmp_path):
    if example.not_run is not None:
        pytest.skip(example.not_run)
    stage(example, inputs, tmp_path)
    script = example.text
    if example.language == "python":
        (tmp_path / "example.py").write_text(PRELUDE + example.text)
        script = f"{sys.executable} example.py"
    try:
        _run(script, tmp_path, inputs)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{example}: {error.returncode}\n{error.stdout}{error.stderr}")


COMMANDS = [(example, words) for example in ALL for words in example.commands]


@pytest.mark.parametrize(("example", "words"), COMMANDS, ids=lambda x: " ".join(x) if isinstance(
    x, list) else str(x))  # fmt: skip
def test_the_flags_exist(example, words, capsys):
    try:
        build_parser().parse_args([word for word in words if word != "…"])
    except SystemExit:
        pytest.fail(f"{example}: phi4mm {' '.join(words)}\n{capsys.readouterr().err}")


def test_commands_are_in_blocks_that_tests_see():
    unseen = [str(e) for e in ALL if e.commands and e.language not in ("sh", "python", "text")]
    assert not unseen


def test_reasons_are_given_where_they_are_needed():
    assert all(example.not_run for example in ALL if example.not_run is not None)
    assert not [e for e in ALL if e.not_run and e.language not in ("sh", "python", "text")]
    assert len(RUNNABLE) - sum(e.not_run is not None for e in RUNNABLE) > 20
