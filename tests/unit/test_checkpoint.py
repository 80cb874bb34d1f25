"""What is wrong with a checkpoint is said at once, by file and field; nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from phi4mm.convert import convert_checkpoint
from phi4mm.convert.checkpoint import open_checkpoint
from phi4mm.convert.tensorfile import open_tensors
from phi4mm.errors import ModelFileError

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:c812c1bd6ad76ac4a6b2e8d8fc3f6a0de0bc9b0ea03cc8b4a2bdc1f2ee2d2a4d\n"
    b"size 4995504848\n"
)
EMBED = "model.embed_tokens.weight"


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def replace(path: Path, content: bytes) -> None:
    """Give a file other content without touching what it is a hard link to."""
    path.unlink()
    path.write_bytes(content)


def edit_json(path: Path, **fields: object) -> None:
    replace(path, json.dumps(json.loads(path.read_text()) | fields).encode())


def edit_config(folder: Path, path: str, value: object) -> None:
    """Set a field of config.json by its dotted path, or remove it where the value is ``...``."""
    config = json.loads((folder / "config.json").read_text())
    *parents, last = path.split(".")
    node = config
    for name in parents:
        node = node[name]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    replace(folder / "config.json", json.dumps(config).encode())


def edit_header(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """Change a safetensors header, keeping the data."""
    content = path.read_bytes()
    n = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + n])
    change(header)
    replace(path, safetensors(header, content[8 + n :]))


def rename_tensor(folder: Path, old: str, new: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    shard = index["weight_map"].pop(old)
    index["weight_map"][new] = shard
    replace(folder / INDEX, json.dumps(index).encode())

    def change(header: dict[str, dict[str, object]]) -> None:
        header[new] = header.pop(old)

    edit_header(folder / shard, change)


def reshape_tensor(folder: Path, name: str, shape: list[int]) -> None:
    shard = json.loads((folder / INDEX).read_text())["weight_map"][name]
    edit_header(folder / shard, lambda header: header[name].update(shape=shape))


def truncate(path: Path, n: int) -> None:
    replace(path, path.read_bytes()[:-n])


def remove_from_index(folder: Path, name: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][name]
    replace(folder / INDEX, json.dumps(index).encode())


def add_to_index(folder: Path, name: str, file: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][name] = file
    replace(folder / INDEX, json.dumps(index).encode())


def swap_shards(folder: Path) -> None:
    first, second = folder / "model-00001-of-00003.safetensors", folder / SHARD
    content = first.read_bytes(), second.read_bytes()
    replace(first, content[1])
    replace(second, content[0])


AUDIO = "audio_processor.config"
IMAGE = "embd_layer.image_embd_layer"
TOWER = "tiny_vision_tower"
Q_PROJ = "model.layers.0.self_attn.qkv_proj.base_layer.weight"

MALFORMED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"config\.json is missing"),
    "broken config": (
        lambda d: replace(d / "config.json", b'{"model_type": "phi4mm",'),
        r"config\.json: broken JSON \(.*line 1",
    ),
    "config is a list": (
        lambda d: replace(d / "config.json", b"[]"),
        r"config\.json: holds a JSON list, not an object",
    ),
    "deep config": (
        lambda d: replace(d / "config.json", b"[" * 100_000),
        r"config\.json: broken JSON \(nested too deeply\)",
    ),
    "field twice": (
        lambda d: replace(d / "config.json", b'{"a": 1, "a": 2}'),
        r"config\.json: broken JSON \('a' is given twice\)",
    ),
    "another model": (
        lambda d: edit_config(d, "model_type", "llama"),
        r"model_type is 'llama'; 'phi4mm' \(Microsoft's layout\) and 'phi4_multimodal'",
    ),
    "missing shard": (
        lambda d: (d / SHARD).unlink(),
        rf"2 of 3 shards are here: {SHARD} is missing",
    ),
    "LFS pointer": (
        lambda d: replace(d / SHARD, LFS),
        rf"{SHARD}: a Git LFS pointer, not the file of 4995504848 bytes.*git lfs pull",
    ),
    "tokenizer is an LFS pointer": (
        lambda d: replace(d / "tokenizer.json", LFS),
        r"tokenizer\.json: a Git LFS pointer",
    ),
    "truncated shard": (
        lambda d: truncate(d / SHARD, 1000),
        rf"{SHARD}: truncated: (\d+) of (\d+) bytes; download it again",
    ),
    "truncated header": (
        lambda d: replace(d / SHARD, (d / SHARD).read_bytes()[:100]),
        rf"{SHARD}: truncated: 100 of",
    ),
    "empty shard": (
        lambda d: replace(d / SHARD, b""),
        rf"{SHARD}: not a safetensors file",
    ),
    "web page for a shard": (
        lambda d: replace(d / SHARD, b"<!DOCTYPE html><html>" * 10),
        rf"{SHARD}: not a safetensors file",
    ),
    "bytes after the data": (
        lambda d: replace(d / SHARD, (d / SHARD).read_bytes() + b"xyz"),
        rf"{SHARD}: 3 bytes after the last tensor",
    ),
    "no weights": (
        lambda d: [p.unlink() for p in d.glob("model*")],
        r"neither model\.safetensors nor model\.safetensors\.index\.json is here",
    ),
    "stale single file": (
        lambda d: (d / "model.safetensors").write_bytes(b""),
        r"both model\.safetensors and model\.safetensors\.index\.json are here",
    ),
    "index without map": (
        lambda d: replace(d / INDEX, b'{"metadata": {}}'),
        r"index\.json: weight_map is missing or empty",
    ),
    "index leads elsewhere": (
        lambda d: add_to_index(d, "x", "../../etc/passwd"),
        r"index\.json: weight_map places 'x' in '\.\./\.\./etc/passwd', no file name",
    ),
    "index names an absent tensor": (
        lambda d: add_to_index(d, "model.extra", SHARD),
        rf"index\.json: 'model\.extra' is not in {SHARD}",
    ),
    "index omits a tensor": (
        lambda d: remove_from_index(d, EMBED),
        rf"holds '{EMBED}', but {INDEX} omits it",
    ),
    "shards swapped": (swap_shards, rf"but {INDEX} places it in model-0000"),
    "missing tensor": (
        lambda d: rename_tensor(d, Q_PROJ, "model.layers.0.self_attn.q_proj.weight"),
        rf"tensor '{Q_PROJ}' is missing",
    ),
    "unknown tensor": (
        lambda d: rename_tensor(
            d, f"{'model.embed_tokens_extend.image_embed.'}img_processor.head.probe", "model.probe"
        ),
        r"tensor 'model\.probe' is not one of this model's",
    ),
    "wrong shape": (
        lambda d: reshape_tensor(d, Q_PROJ, [256, 512]),
        rf"'{Q_PROJ}' has shape \[256, 512\], must be \[512, 256\]",
    ),
    "rank differs": (
        lambda d: edit_config(d, "vision_lora.r", 9),
        r"lora_A\.vision\.weight' has shape \[8, 256\], must be \[9, 256\]",
    ),
    "wrong activation": (
        lambda d: edit_config(d, "hidden_act", "gelu"),
        r"config\.json: hidden_act is 'gelu'; supported is 'silu'",
    ),
    "untied": (
        lambda d: edit_config(d, "tie_word_embeddings", False),
        r"tie_word_embeddings is False; supported is True",
    ),
    "batch norm": (
        lambda d: edit_config(d, f"{AUDIO}.batch_norm", True),
        r"audio_processor\.config\.batch_norm is True; supported is False",
    ),
    "another order of crops": (
        lambda d: edit_config(d, f"{IMAGE}.hd_transform_order", "glb_sub"),
        r"hd_transform_order is 'glb_sub'; supported is 'sub_glb'",
    ),
    "crop size": (
        lambda d: edit_config(d, f"{IMAGE}.crop_size", 336),
        r"crop_size is 336; supported is 448",
    ),
    "streaming attention": (
        lambda d: edit_config(d, f"{AUDIO}.chunk_size", 18),
        r"chunk_size is 18; supported is -1",
    ),
    "sliding window": (
        lambda d: edit_config(d, "sliding_window", 2047),
        r"sliding_window is 2047; supported is an integer from 4096",
    ),
    "no RoPE factors": (
        lambda d: edit_config(d, "rope_scaling", None),
        r"rope_parameters\.long_factor \(or rope_scaling\.long_factor\) is missing",
    ),
    "YaRN": (
        lambda d: edit_config(d, "rope_scaling.type", "yarn"),
        r"rope_scaling\.type is 'yarn'; supported is 'longrope'",
    ),
    "original context of one": (
        lambda d: edit_config(d, "original_max_position_embeddings", 1),
        r"original_max_position_embeddings is 1; supported is an integer from 2",
    ),
    "too few RoPE factors": (
        lambda d: edit_config(d, "rope_scaling.short_factor", [1.0] * 10),
        r"rope_scaling\.short_factor is .*; supported is 24 numbers",
    ),
    "RoPE factor of zero": (
        lambda d: edit_config(d, "rope_scaling.short_factor", [0.0] * 24),
        r"rope_scaling\.short_factor is 0\.0; supported is above 0",
    ),
    "NaN epsilon": (
        lambda d: edit_config(d, "rms_norm_eps", float("nan")),
        r"rms_norm_eps is nan; supported is a number above 0",
    ),
    "huge number": (
        lambda d: edit_config(d, "rope_theta", 10**400),
        r"rope_theta is 1000.*; supported is a number above 0",
    ),
    "heads do not divide": (
        lambda d: edit_config(d, "num_attention_heads", 3),
        r"num_attention_heads is 3; supported is a divisor of hidden_size, 256",
    ),
    "field missing": (
        lambda d: edit_config(d, "num_key_value_heads", ...),
        r"config\.json: num_key_value_heads is missing",
    ),
    "text for a number": (
        lambda d: edit_config(d, "vocab_size", "512"),
        r"vocab_size is '512'; supported is an integer",
    ),
    "another stop token": (
        lambda d: edit_json(d / "generation_config.json", eos_token_id=[5]),
        r"eos_token_id names \[5\]",
    ),
    "no crop limit": (
        lambda d: (d / "preprocessor_config.json").unlink(),
        r"preprocessor_config\.json is missing",
    ),
}


@pytest.fixture
def broken(checkpoint_dir: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to be broken."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_dir("tiny", "ms"), folder, copy_function=os.link)
    return folder


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_checkpoint_is_refused_before_any_work(
    case: str, broken: Path, tmp_path: Path
) -> None:
    spoil, message = MALFORMED[case]
    spoil(broken)
    start = time.perf_counter()
    with pytest.raises(ModelFileError, match=message) as caught:
        convert_checkpoint(broken, tmp_path / "out")
    assert time.perf_counter() - start < 3
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_unspoilt_copy_is_accepted(broken: Path, tmp_path: Path) -> None:
    convert_checkpoint(broken, tmp_path / "out")


def test_a_missing_folder_and_a_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nowhere: no such folder"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match="safetensors: a file; a checkpoint is a folder"):
        open_checkpoint(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vision_config.hidden_act", "gelu", "hidden_act is 'gelu'; supported is 'gelu_pytorch"),
        ("vision_config.feature_layer", -1, "feature_layer is -1; supported is -2"),
        ("vision_config.image_token_id", 5, r"image_token_id is 5; supported is \d+"),
        ("audio_config.bias_symmetric", True, "bias_symmetric is True; supported is False"),
        ("audio_config.bias_max_distance", 1000, r"bias_values\.weight' has shape \[40, 4\]"),
        ("rope_parameters.rope_type", "default", "rope_type is 'default'"),
        ("vision_config.num_hidden_layers", ..., "vision_config.num_hidden_layers is missing"),
    ],
)
def test_fields_of_transformers_layout_are_checked(
    field: str, value: object, message: str, checkpoint_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(checkpoint_dir("tiny", "hf"), folder, copy_function=os.link)
    edit_config(folder, field, value)
    with pytest.raises(ModelFileError, match=message):
        convert_checkpoint(folder, tmp_path / "out")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    whole = safetensors({"w": entry}, bytes(8))
    path = tmp_path / "x.safetensors"
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(ModelFileError, match=r"x\.safetensors"):
            open_tensors(path)


def test_missing_adapter_folder_of_transformers_layout(
    checkpoint_dir: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(checkpoint_dir("tiny", "hf"), folder, copy_function=os.link)
    shutil.rmtree(folder / "speech-lora")
    with pytest.raises(ModelFileError, match=r"speech-lora: adapter_config\.json is missing"):
        convert_checkpoint(folder, tmp_path / "out")


def test_adapters_inside_the_shards_win_over_their_folders(
    checkpoint_dir: Callable[..., Path],
) -> None:
    checkpoint = open_checkpoint(checkpoint_dir("tiny", "ms"))
    assert [folder.name for folder in checkpoint.ignored_folders] == ["vision-lora", "speech-lora"]
    assert checkpoint.adapter_folders == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, "takes 8 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "takes 8 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "begins at byte 4, not 0"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, r"bad shape \[-2\]"),
        ({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, r"bad shape \[0\]"),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, r"bad shape \[2\.0\]"),
        ({"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}, "dtype I64 is not supported"),
        ({"dtype": "F32", "shape": [2]}, "no dtype, shape and data_offsets"),
        ({"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}, "takes"),
        ([], "no dtype, shape and data_offsets"),
    ],
)
def test_tensor_entries_are_checked(entry: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors({"w": entry}, bytes(8)))
    with pytest.raises(ModelFileError, match=message):
        open_tensors(path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors({"a": entry, "b": entry}, bytes(8)))
    with pytest.raises(ModelFileError, match="overlap or leave a gap"):
        open_tensors(path)


def test_rows_of_every_type_are_read_exactly(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.5, 0.0], [3.140625, 65280.0, -1e-3]], np.float32)
    half = values.astype(np.float16)
    brain = (values.view(np.uint32) >> 16).astype(np.uint16)
    stored = {"F32": values, "F16": half, "BF16": brain}
    header, data = {}, b""
    for dtype, array in stored.items():
        begin = len(data)
        data += array.tobytes()
        header[dtype] = {"dtype": dtype, "shape": [2, 3], "data_offsets": [begin, len(data)]}
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors(header | {"__metadata__": {"format": "pt"}}, data))
    tensors = open_tensors(path)
    expected = {
        "F32": values,
        "F16": half.astype(np.float32),
        "BF16": (brain.astype(np.uint32) << 16).view(np.float32),
    }
    for dtype, rows in expected.items():
        np.testing.assert_array_equal(tensors[dtype].read(0, 2), rows)
        np.testing.assert_array_equal(tensors[dtype].read(1, 2), rows[1:])
