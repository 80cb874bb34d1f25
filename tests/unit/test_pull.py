"""`phi4mm pull` from a hub on this machine: what arrives, what is refused, and what is resumed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from measured import run

from hub_server import COMMIT, Hub, serve
from phi4mm.cli.options import sample_bundle
from phi4mm.convert import TYPES, PartTypes, convert_checkpoint
from phi4mm.modelfile.bundle import Bundle
from phi4mm.pull import download
from phi4mm.quantize.plan import Request
from phi4mm.quantize.quantize import quantize_bundle
from phi4mm.quantize.recipe import find_recipe

REPO = "someone/Phi-4-multimodal-tiny"
SHARDS = [f"model-{i}-of-00003.safetensors" for i in ("00001", "00002", "00003")]
CheckpointDir = Callable[..., Path]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub-cache"


def connect(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT and HF_HUB_CACHE do when the client is imported."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


@pytest.fixture
def hub(
    checkpoint_dir: CheckpointDir, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    """A hub with the tiny checkpoint."""
    with serve(Hub(REPO, checkpoint_dir("tiny"))) as hub:
        connect(hub, cache, monkeypatch)
        yield hub


def pull(out: Path, *flags: object, kind: str = "f32") -> int:
    types = ("--type", kind, "--mmproj-type", "f16", "--lora-type", "f16")
    return run("pull", REPO, *types, "-o", out, *flags)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a bundle by name, without what names the checkpoint's folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.gguf"))}


@pytest.fixture(scope="session")
def converted(
    checkpoint_dir: CheckpointDir, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What `phi4mm convert` makes of the same checkpoint, in a folder of the repository's name."""
    folder = tmp_path_factory.mktemp("plain") / REPO.rpartition("/")[2]
    shutil.copytree(checkpoint_dir("tiny"), folder, copy_function=os.link)
    out = folder.parent / "bundle"
    convert_checkpoint(folder, out, types=PartTypes(TYPES["f32"], TYPES["f16"], TYPES["f16"]))
    return contents(out)


# ---- checkpoints


@pytest.mark.parametrize("flags", [(), ("--stream",)], ids=["kept", "streamed"])
def test_a_pulled_checkpoint_is_the_converted_one(
    hub: Hub, tmp_path: Path, cache: Path, converted: dict[str, bytes], flags: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    assert pull(out, *flags) == 0
    assert contents(out) == converted
    assert sorted(path.name for path in out.iterdir()) == sorted(converted)
    kept = {path.name for path in cache.rglob("*.safetensors")}
    assert kept == (set() if flags else set(SHARDS))
    assert not list(cache.rglob("*.part"))


def test_transformers_layout_is_pulled_with_its_adapters(
    checkpoint_dir: CheckpointDir, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(Hub(REPO, checkpoint_dir("tiny", "hf"))) as hub:
        connect(hub, cache, monkeypatch)
        assert pull(tmp_path / "out", "--stream") == 0
    with Bundle.open(tmp_path / "out") as bundle:
        assert set(bundle.adapters) == {"vision", "speech"}
        assert not bundle.warnings


def test_adapter_folders_that_the_shards_repeat_are_not_fetched(hub: Hub, tmp_path: Path) -> None:
    assert pull(tmp_path / "out") == 0
    assert not any("lora/adapter_model" in name for name, _ in hub.requests)


def test_quantised_on_the_way_is_as_quantised_after(hub: Hub, tmp_path: Path) -> None:
    assert pull(tmp_path / "plain") == 0
    assert pull(tmp_path / "direct", kind="q4_k_m") == 0
    quantize_bundle(tmp_path / "plain", tmp_path / "after", Request(find_recipe("Q4_K_M")))
    assert contents(tmp_path / "direct") == contents(tmp_path / "after")


def test_a_second_type_needs_no_second_download(hub: Hub, tmp_path: Path) -> None:
    assert pull(tmp_path / "one") == 0
    n_requests = len(hub.requests)
    assert pull(tmp_path / "two", kind="q8_0") == 0
    assert len(hub.requests) == n_requests


def test_offline_the_cache_is_enough(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, converted: dict[str, bytes]
) -> None:
    assert pull(tmp_path / "one", kind="q8_0") == 0
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    n_requests = len(hub.requests)
    assert pull(tmp_path / "two") == 0
    assert contents(tmp_path / "two") == converted
    assert len(hub.requests) == n_requests


def test_offline_without_it_is_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert pull(tmp_path / "out") == 2
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err


def test_the_settings_of_the_hub_hold_in_a_process_of_its_own(
    hub: Hub, tmp_path: Path, cache: Path, converted: dict[str, bytes]
) -> None:
    hub.token = "hf_secret"
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_TOKEN": hub.token}
    command = [sys.executable, "-m", "phi4mm", "pull", REPO, "--type", "F32", "--mmproj-type",
               "F16", "--lora-type", "f16", "--revision", "v1"]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "Phi-4-multimodal-tiny-F32") == converted
    assert "bundle id" in done.stdout
    assert "hf_secret" not in done.stdout + done.stderr


# ---- what goes wrong on the way


def test_a_broken_connection_goes_on_where_it_broke(
    hub: Hub, tmp_path: Path, converted: dict[str, bytes]
) -> None:
    hub.cut_after = {SHARDS[0]: [10_000, 20_000], "tokenizer.json": [100]}
    assert pull(tmp_path / "out") == 0
    assert contents(tmp_path / "out") == converted
    assert [start for name, start in hub.requests if name == SHARDS[0]] == [0, 10_000, 30_000]


def test_a_server_without_ranges_begins_anew(
    hub: Hub, tmp_path: Path, converted: dict[str, bytes]
) -> None:
    hub.knows_ranges = False
    hub.cut_after = {SHARDS[1]: [10_000]}
    assert pull(tmp_path / "out") == 0
    assert contents(tmp_path / "out") == converted


def test_a_busy_hub_is_asked_again(hub: Hub, tmp_path: Path, converted: dict[str, bytes]) -> None:
    hub.statuses = {SHARDS[0]: [503, 429], "config.json": [500]}
    assert pull(tmp_path / "out") == 0
    assert contents(tmp_path / "out") == converted


@pytest.mark.parametrize("flags", [(), ("--stream",)], ids=["kept", "streamed"])
def test_after_an_interruption_it_goes_on(
    hub: Hub, tmp_path: Path, converted: dict[str, bytes], flags: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    hub.cut_after = {SHARDS[1]: [10_000] + [0] * 5}
    assert pull(out, *flags) == 2
    assert "run the same command again" in capsys.readouterr().err
    assert not list(out.glob("*.gguf"))  # nothing looks whole
    assert run("inspect", out) == 2
    hub.requests.clear()
    assert pull(out, *flags) == 0
    assert contents(out) == converted
    assert hub.n_transfers(SHARDS[0]) == 0  # also where it was converted and removed
    assert (SHARDS[1], 10_000) in hub.requests


def test_a_killed_process_goes_on_as_well(
    hub: Hub, tmp_path: Path, cache: Path, converted: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    processes: list[subprocess.Popen[bytes]] = []
    hub.on_request = lambda name: processes[0].kill() if name == SHARDS[2] else None
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-m", "phi4mm", "pull", REPO, "--type", "F32", "--mmproj-type",
               "F16", "--lora-type", "f16", "--stream", "-o", str(out)]  # fmt: skip
    processes.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
    assert processes[0].wait(60) != 0
    hub.on_request = lambda name: None
    assert not list(out.glob("*.gguf"))
    hub.requests.clear()
    assert pull(out, "--stream") == 0
    assert contents(out) == converted
    assert hub.n_transfers(SHARDS[0]) == hub.n_transfers(SHARDS[1]) == 0


def test_another_type_does_not_go_on_with_the_parts_of_the_first(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = {SHARDS[2]: [0] * 5}
    assert pull(tmp_path / "out", "--stream", kind="q8_0") == 2
    assert pull(tmp_path / "out", "--stream", kind="f16") == 0
    assert pull(tmp_path / "other", kind="f16") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


@pytest.mark.parametrize("name", [SHARDS[1], "tokenizer.json", "config.json"])
def test_a_wrong_hash_is_refused_and_not_kept(
    hub: Hub, tmp_path: Path, cache: Path, name: str, capsys: pytest.CaptureFixture[str],
    converted: dict[str, bytes],
) -> None:  # fmt: skip
    data = bytearray((hub.folder / name).read_bytes())
    data[-10] ^= 1
    hub.replaced = {name: bytes(data)}
    assert pull(tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert f"{name}: its hash is" in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.gguf"))
    hub.replaced = {}
    assert pull(tmp_path / "out") == 0
    assert contents(tmp_path / "out") == converted


def test_damage_in_the_cache_is_found(
    hub: Hub, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(tmp_path / "one") == 0
    (shard,) = cache.rglob(SHARDS[0])
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.resolve().write_bytes(data)
    assert pull(tmp_path / "two") == 2
    assert "its hash is" in capsys.readouterr().err
    assert pull(tmp_path / "two") == 0


# ---- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MB, where the system lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "phi4mm-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    filler = disk / "filler"
    with filler.open("wb") as file:
        file.write(bytes(shutil.disk_usage(disk).free - leave))
    return filler


def test_too_little_room_is_refused_before_a_weight_is_fetched(
    hub: Hub, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(small_disk, leave=1_000_000)
    assert pull(small_disk / "out") == 2
    assert "for the bundle are needed" in capsys.readouterr().err
    assert not any(name in SHARDS for name, _ in hub.requests)


def test_a_disk_that_becomes_full_on_the_way_can_be_emptied(
    hub: Hub, small_disk: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], converted: dict[str, bytes],
) -> None:  # fmt: skip
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(small_disk / "cache"))
    out = small_disk / "out"

    def fill_once(name: str) -> None:
        if name == SHARDS[1] and not (small_disk / "filler").exists():
            fill(small_disk, leave=50_000)

    hub.on_request = fill_once
    assert pull(out, "--stream") == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert error.count("\n") == 1
    assert not list(out.glob("*.gguf"))
    hub.on_request = lambda name: None
    (small_disk / "filler").unlink()
    hub.requests.clear()
    assert pull(out, "--stream") == 0
    assert contents(out) == converted
    assert hub.n_transfers(SHARDS[0]) == 0


def test_a_limit_on_the_size_of_files_is_said(hub: Hub, tmp_path: Path, cache: Path) -> None:
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-m", "phi4mm", "pull", REPO, "--type", "F32", "-o", "out"]
    limit = 200_000
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1


def test_streaming_needs_room_for_one_weight_file_only(
    hub: Hub, small_disk: Path, monkeypatch: pytest.MonkeyPatch, converted: dict[str, bytes]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(small_disk / "cache"))
    sizes = [(hub.folder / name).stat().st_size for name in SHARDS]
    bundle = sum(map(len, converted.values()))
    fill(small_disk, leave=bundle + max(sizes) + min(sizes) // 2)
    assert pull(small_disk / "kept") == 2
    shutil.rmtree(small_disk / "cache")
    assert pull(small_disk / "out", "--stream") == 0
    assert contents(small_disk / "out") == converted


# ---- what is refused


def test_a_folder_with_a_model_is_left_alone(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sample_bundle(), tmp_path / "out")
    assert pull(tmp_path / "out") == 2
    assert "is in the way" in capsys.readouterr().err
    assert not hub.requests


@pytest.mark.parametrize(
    ("repo", "flags", "message"),
    [
        ("someone/else", (), "no such repository"),
        (REPO, ("--revision", "v9"), "no revision 'v9'"),
        ("not a repository", (), "must be OWNER/NAME"),
        (REPO, ("--type", "Q9"), "type 'Q9' is not known"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], repo: str,
    flags: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    assert run("pull", repo, "-o", tmp_path / "out", *flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_hub_is_said(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert pull(tmp_path / "out") == 2
    assert "the hub cannot be reached" in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_refused_before_its_weights_are_fetched(
    hub: Hub, tmp_path: Path, checkpoint_dir: CheckpointDir, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.folder = shutil.copytree(checkpoint_dir("tiny"), tmp_path / "changed")
    config = json.loads((hub.folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (hub.folder / "config.json").write_text(json.dumps(config))
    assert pull(tmp_path / "out") == 2
    assert "is missing" in capsys.readouterr().err
    assert not any(name in SHARDS for name, _ in hub.requests)


# ---- repositories of GGUF files


@pytest.fixture
def gguf_hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the sample's files."""
    folder = tmp_path / "repository"
    shutil.copytree(sample_bundle(), folder, ignore=shutil.ignore_patterns("media", "*.md"))
    with serve(Hub(REPO, folder)) as hub:
        connect(hub, cache, monkeypatch)
        yield hub


def test_a_ready_bundle_is_pulled_and_checked(
    gguf_hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pull", REPO, "-o", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(gguf_hub.folder)
    with Bundle.open(tmp_path / "out") as bundle:
        assert f"bundle id {bundle.bundle_id}" in capsys.readouterr().out


def test_only_what_belongs_together_is_pulled(
    gguf_hub: Hub, tmp_path: Path, bundle_dir: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for path in bundle_dir("heads").glob("*.gguf"):
        shutil.copy(path, gguf_hub.folder / path.name)
    assert run("pull", REPO, "-o", tmp_path / "out") == 2
    assert "several files for one decoder" in capsys.readouterr().err
    assert run("pull", REPO, "-o", tmp_path / "out", "--type", "q8_0") == 0
    assert contents(tmp_path / "out") == contents(sample_bundle())
    assert "not part of it: " in capsys.readouterr().out
    assert run("pull", REPO, "-o", tmp_path / "two", "--type", "Q2_K") == 2
    assert "no decoder of type Q2_K; there are" in capsys.readouterr().err


def test_a_bundle_goes_on_after_an_interruption(gguf_hub: Hub, tmp_path: Path) -> None:
    name = next(gguf_hub.folder.glob("mmproj*")).name
    gguf_hub.cut_after = {name: [10_000] + [0] * 5}
    assert run("pull", REPO, "-o", tmp_path / "out") == 2
    assert not list((tmp_path / "out").glob("*.gguf"))
    gguf_hub.requests.clear()
    assert run("pull", REPO, "-o", tmp_path / "out") == 0
    assert (name, 10_000) in gguf_hub.requests
    assert contents(tmp_path / "out") == contents(gguf_hub.folder)


def test_a_damaged_file_of_a_bundle_is_not_kept(
    gguf_hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(gguf_hub.folder.glob("mmproj*")).name
    data = bytearray((gguf_hub.folder / name).read_bytes())
    data[-1] ^= 1
    gguf_hub.replaced = {name: bytes(data)}
    assert run("pull", REPO, "-o", tmp_path / "out") == 2
    assert f"{name}: its hash is" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.gguf"))


def test_a_repository_without_a_model_is_refused(
    gguf_hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in gguf_hub.folder.glob("*.gguf"):
        path.unlink()
    (gguf_hub.folder / "README.md").write_text("nothing here")
    assert run("pull", REPO, "-o", tmp_path / "out") == 2
    assert "neither a checkpoint nor a decoder" in capsys.readouterr().err


def test_the_commit_is_what_is_fetched(hub: Hub, tmp_path: Path, cache: Path) -> None:
    assert pull(tmp_path / "out") == 0
    (reference,) = cache.rglob("refs/main")
    assert reference.read_text() == COMMIT
