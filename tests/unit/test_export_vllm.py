"""`phi4mm export vllm`: the launch, read back by a shell and as YAML."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from measured import run

from phi4mm.export.vllm import Launch, arguments

GIVEN = ("--tensor-parallel", 2, "--data-parallel", 2, "-c", 8192, "--max-media", 5)


def started(folder: Path, *flags: object) -> list[str]:
    """What the exported script starts: programs of these names show what they are given."""
    assert run("export", "vllm", *flags, "-o", folder) == 0
    bin_dir = folder / "bin"
    bin_dir.mkdir()
    for name, text in (("vllm", 'for w in "$@"; do echo "$w"; done'), ("hf", 'echo "/hub/$2"')):
        (bin_dir / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_dir / name).chmod(0o755)
    done = subprocess.run(
        [folder / "vllm.sh", "--seed", "1"], env={"PATH": f"{bin_dir}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def values(words: list[str], flag: str) -> list[str]:
    """What follows a flag."""
    rest = words[words.index(flag) + 1 :]
    return rest[: next((i for i, w in enumerate(rest) if w.startswith("--")), len(rest))]


def test_the_script_starts_vllm_with_both_adapters(tmp_path: Path) -> None:
    words = started(tmp_path, *GIVEN)
    model = "/hub/microsoft/Phi-4-multimodal-instruct"
    assert words[:2] == ["serve", model]
    assert values(words, "--lora-modules") == [
        f"vision={model}/vision-lora",
        f"speech={model}/speech-lora",
    ]
    assert values(words, "--max-lora-rank") == ["320"]  # that of the speech adapter
    assert values(words, "--max-loras") == ["2"]
    assert values(words, "--served-model-name") == ["phi4-mm"]
    assert values(words, "--max-model-len") == ["8192"]
    assert values(words, "--tensor-parallel-size") == values(words, "--data-parallel-size") == ["2"]
    limits = json.loads(values(words, "--limit-mm-per-prompt")[0])
    assert limits == {"image": 5, "audio": 5}
    assert words[-2:] == ["--seed", "1"]  # what is added by hand


def test_a_folder_is_used_where_it_is(tmp_path: Path) -> None:
    words = started(tmp_path, "/srv/my models/phi")
    assert words[1] == "/srv/my models/phi"
    assert values(words, "--lora-modules")[0] == "vision=/srv/my models/phi/vision-lora"


def test_several_hosts_are_a_ray_cluster(tmp_path: Path) -> None:
    words = started(tmp_path, "--tensor-parallel", 8, "--ray")
    assert values(words, "--distributed-executor-backend") == ["ray"]
    assert "ray start --head" in (tmp_path / "vllm.sh").read_text()
    assert not (tmp_path / "compose.yaml").exists()


def test_the_compose_file_puts_the_translator_before_vllm(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert run("export", "vllm", *GIVEN, "-o", tmp_path) == 0
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    launch = Launch(n_ctx=8192, tensor_parallel=2, data_parallel=2, n_media=5)
    assert services["vllm"]["command"] == ["/model", *arguments(launch, "/model")]
    (device,) = services["vllm"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 4
    front = services["phi4mm"]
    assert front["command"][:5] == ["serve", "--engine", "vllm", "--upstream", "http://vllm:8000"]
    assert front["depends_on"]["vllm"]["condition"] == "service_healthy"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tensor-parallel", 3), "--tensor-parallel is 3: the heads divide by 1, 2, 4, 8"),
        (("--pipeline-parallel", 2), "vLLM's class of this model takes 1 only"),
        (("-c", 200000), "--ctx-size is 200000: it must be 1 to 131072"),
        (("--max-media", 0), "--max-media is 0"),
    ],
)
def test_what_cannot_be_is_refused(
    flags: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", "vllm", *flags) == 2
    assert message in capsys.readouterr().err.replace("-c/--ctx", "--ctx")


def test_what_vllm_cannot_do_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "vllm") == 0
    said = capsys.readouterr().out
    assert "chooses the RoPE factors by --max-model-len" in said
    assert "projection for speech" in said
    assert run("export", "vllm", "-c", 4096) == 0
    assert "RoPE" not in capsys.readouterr().out
