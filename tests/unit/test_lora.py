"""A user's own PEFT LoRA folder becomes an adapter of a bundle, or the reason why not is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oracle.checkpoint import adapter_config
from phi4mm.convert import convert_adapter, convert_checkpoint
from phi4mm.errors import InputError, ModelFileError
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.ggml_type import GGMLType

RANK, ALPHA = 8, 24
FIRST = "model.layers.0.self_attn.qkv_proj"
Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(checkpoint_dir: Callable[..., Path]) -> dict[str, np.ndarray]:
    """Tensors of an adapter, by module path: the checkpoint's own vision adapter, halved."""
    folder = checkpoint_dir("tiny", "hf") / "vision-lora"
    return {name: x * np.float32(0.5) for name, x in load_file(folder / WEIGHTS).items()}


WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(trained: dict[str, np.ndarray], tmp_path: Path) -> Folder:
    """Writes a PEFT folder; ``config`` changes its adapter_config.json."""

    def write(
        name: str = "charts-vision-lora",
        tensors: dict[str, np.ndarray] | None = None,
        prefix: str = "base_model.model.",
        **config: object,
    ) -> Path:
        path = tmp_path / name
        path.mkdir()
        chosen = trained if tensors is None else tensors
        save_file({prefix + key: x for key, x in chosen.items()}, path / WEIGHTS)
        fields = adapter_config(RANK, ALPHA) | config
        (path / "adapter_config.json").write_text(json.dumps(fields))
        return path

    return write


def renamed(tensors: dict[str, np.ndarray], old: str, new: str) -> dict[str, np.ndarray]:
    return {name.replace(old, new): x for name, x in tensors.items()}


def test_an_adapter_is_converted_for_a_bundle(
    folder: Folder, bundle_dir: Callable[..., Path], trained: dict[str, np.ndarray], tmp_path: Path
) -> None:
    bundle, out = bundle_dir("tiny", "ms"), tmp_path / "out"
    report = convert_adapter(folder(), bundle, out, lora_type=GGMLType.F32)
    (written,) = report.files
    assert written.path == out / "charts-vision-lora-F32.gguf"
    opened = Bundle.open(bundle, vision_lora=written.path)
    adapter = opened.adapters["vision"]
    assert adapter.path == written.path
    assert adapter.bundle_id == opened.bundle_id
    assert (adapter.hparams.rank, adapter.hparams.alpha) == (RANK, ALPHA)
    for target, module in (("attn_qkv", "self_attn.qkv_proj"), ("ffn_down", "mlp.down_proj")):
        for side in "ab":
            np.testing.assert_array_equal(
                adapter.file.data(f"blk.1.{target}.weight.lora_{side}"),
                trained[f"model.layers.1.{module}.lora_{side.upper()}.weight"],
            )


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
@pytest.mark.parametrize("inside", ["", ".default", ".vision"])
def test_every_spelling_of_peft_gives_the_same_file(
    prefix: str,
    inside: str,
    folder: Folder,
    bundle_dir: Callable[..., Path],
    trained: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    plain = convert_adapter(folder(), bundle_dir("tiny", "ms"), tmp_path / "plain")
    tensors = renamed(trained, ".weight", f"{inside}.weight")
    source = folder("other/charts-vision-lora".replace("other/", "x-"), tensors, prefix)
    spelt = convert_adapter(source, bundle_dir("tiny", "ms"), tmp_path / "spelt")
    one, two = (Bundle.open(bundle_dir("tiny", "ms"), vision_lora=report.files[0].path)
                for report in (plain, spelt))  # fmt: skip
    for name in one.adapters["vision"].file.tensors:
        np.testing.assert_array_equal(
            one.adapters["vision"].file.raw(name), two.adapters["vision"].file.raw(name)
        )


def test_rank_stabilised_lora_has_its_own_scale(
    folder: Folder, bundle_dir: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = bundle_dir("tiny", "ms")
    report = convert_adapter(folder(use_rslora=True), bundle, tmp_path / "out")
    adapter = Bundle.open(bundle, vision_lora=report.files[0].path).adapters["vision"]
    assert adapter.hparams.scale == pytest.approx(ALPHA / np.sqrt(RANK))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, r"use_dora is True; supported is False"),
        ({"bias": "lora_only"}, r"bias is 'lora_only'; supported is 'none'"),
        ({"fan_in_fan_out": True}, r"fan_in_fan_out is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"rank_pattern": {"qkv_proj": 4}}, r"rank_pattern is \{'qkv_proj': 4\}"),
        ({"peft_type": "LOHA"}, r"peft_type is 'LOHA'; supported is 'LORA'"),
        ({"r": 16}, r"lora_A\.weight' has shape \[8, 256\], must be \[16, 256\]"),
        ({"r": "8"}, r"r is '8'; supported is an integer"),
        ({"lora_alpha": 0}, r"lora_alpha is 0; supported is a number above 0"),
    ],
)
def test_what_is_not_plain_lora_is_refused(
    config: dict[str, object],
    message: str,
    folder: Folder,
    bundle_dir: Callable[..., Path],
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelFileError, match=message):
        convert_adapter(folder(**config), bundle_dir("tiny", "ms"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def without(tensors: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: x for key, x in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t | {"model.embed_tokens.weight": np.zeros((4, 4), np.float32)},
            r"tensor 'base_model\.model\.model\.embed_tokens\.weight' is not one of this model's",
        ),
        (
            lambda t: without(t, f"{FIRST}.lora_B.weight"),
            rf"tensor '.*{FIRST}\.lora_B\.weight' is missing",
        ),
        (
            lambda t: t | {f"{FIRST}.lora_A.other.weight": t[f"{FIRST}.lora_A.weight"]},
            r"are the same weight of two adapters",
        ),
        (
            lambda t: t | {f"{FIRST}.lora_B.weight": np.zeros((4, RANK), np.float32)},
            r"lora_B\.weight' has shape \[4, 8\], must be \[512, 8\]",
        ),
        (
            lambda t: renamed(t, "model.layers.1.", "model.layers.2."),
            r"tensor '.*model\.layers\.1\..*' is missing",
        ),
    ],
    ids=["no LoRA", "half", "two adapters", "shape", "layer"],
)
def test_tensors_must_be_those_of_the_decoder(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]],
    message: str,
    folder: Folder,
    bundle_dir: Callable[..., Path],
    trained: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    source = folder(tensors=change(trained))
    with pytest.raises(ModelFileError, match=message):
        convert_adapter(source, bundle_dir("tiny", "ms"), tmp_path / "out")


def test_the_mode_must_be_told(
    folder: Folder, bundle_dir: Callable[..., Path], tmp_path: Path
) -> None:
    source, bundle = folder("my-adapter"), bundle_dir("tiny", "ms")
    with pytest.raises(InputError, match=r"say --as vision or --as speech"):
        convert_adapter(source, bundle, tmp_path / "out")
    report = convert_adapter(source, bundle, tmp_path / "out", adapter="speech")
    assert report.files[0].path.name == "my-adapter-speech-lora-Q8_0.gguf"
    assert "speech" in Bundle.open(bundle, speech_lora=report.files[0].path).adapters


def test_retraining_replaces_the_file_of_the_same_bundle_only(
    folder: Folder, bundle_dir: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = folder(), tmp_path / "out"
    convert_adapter(source, bundle_dir("tiny", "ms"), out)
    (written,) = out.iterdir()
    first = written.read_bytes()
    (source / "adapter_config.json").write_text(json.dumps(adapter_config(RANK, 2 * ALPHA)))
    convert_adapter(source, bundle_dir("tiny", "ms"), out)
    assert written.read_bytes() != first
    with pytest.raises(InputError, match="is there already and of another model"):
        convert_adapter(source, bundle_dir("tiny", "hf"), out)


def test_a_bundle_with_a_merged_adapter_takes_no_other(
    folder: Folder, checkpoint_dir: Callable[..., Path], tmp_path: Path
) -> None:
    convert_checkpoint(checkpoint_dir("tiny", "ms"), tmp_path / "merged", merge="vision")
    with pytest.raises(InputError, match="has its vision adapter merged"):
        convert_adapter(folder(), tmp_path / "merged", tmp_path / "out")


def test_weights_in_pickle_form_are_not_read(
    folder: Folder, bundle_dir: Callable[..., Path], tmp_path: Path
) -> None:
    source = folder()
    (source / WEIGHTS).rename(source / "adapter_model.bin")
    with pytest.raises(ModelFileError, match=r"adapter_model\.safetensors is missing"):
        convert_adapter(source, bundle_dir("tiny", "ms"), tmp_path / "out")


def test_a_bundle_does_not_get_a_second_adapter_for_a_mode(
    folder: Folder, bundle_dir: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(bundle_dir("tiny", "ms"), tmp_path / "bundle"))
    before = sorted(bundle.iterdir())
    with pytest.raises(InputError, match="is this bundle's vision adapter already"):
        convert_adapter(folder(), bundle, bundle)
    assert sorted(bundle.iterdir()) == before
