"""Conversion of whole checkpoints: complete, exact, repeatable, and clean when it fails."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from phi4mm.cli import convert as cli
from phi4mm.convert import TYPES, PartTypes, convert_checkpoint
from phi4mm.convert.checkpoint import MICROSOFT, TRANSFORMERS, Checkpoint, Layout, open_checkpoint
from phi4mm.convert.config import read_config, rope_attn_factor
from phi4mm.convert.encode import NotFinite, encode_rows
from phi4mm.convert.naming import adapter_name, checkpoint_name
from phi4mm.convert.plan import resolve_parts
from phi4mm.convert.tensorfile import SourceTensor
from phi4mm.errors import InputError, ModelFileError
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.reader import GGUFFile

DATA = Path(__file__).parents[1] / "data"
F32 = PartTypes(*[GGMLType.F32] * 3)
CheckpointDir = Callable[..., Path]


def files_of(folder: Path) -> dict[str, GGUFFile]:
    """The files of a bundle by part."""
    bundle = Bundle.open(folder)
    files = {"decoder": bundle.decoder.file}
    if bundle.mmproj:
        files["mmproj"] = bundle.mmproj.file
    return files | {name: part.file for name, part in bundle.adapters.items()}


def linked_copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, copy_function=os.link)
    return target


# ---- the real checkpoint's names and shapes


def real_tensors() -> list[tuple[str, tuple[int, ...], str]]:
    lines = gzip.decompress((DATA / "real_tensors.tsv.gz").read_bytes()).decode().splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    return [(ms, tuple(json.loads(shape)), hf) for ms, shape, hf in rows]


def real_checkpoint(folder: Path, layout: Layout) -> Checkpoint:
    """The original checkpoint without its weights."""
    tensors = {}
    for ms, shape, hf in real_tensors():
        name = ms if layout is MICROSOFT else hf.replace(": ", "/")
        tensors[name] = SourceTensor(name, "BF16", shape, folder / "x", memoryview(b""))
    config = json.loads((DATA / "real_config.json").read_text())
    (folder / "preprocessor_config.json").write_text('{"dynamic_hd": 36}')
    return Checkpoint(folder, layout, config, tensors, (), ())


@pytest.mark.parametrize("layout", [MICROSOFT, TRANSFORMERS], ids=["ms", "hf"])
def test_every_one_of_the_2047_tensors_is_used_or_dropped(layout: Layout, tmp_path: Path) -> None:
    config = read_config(real_checkpoint(tmp_path, MICROSOFT))
    found, dropped = resolve_parts(real_checkpoint(tmp_path, layout), config)
    assert {part: len(rules) for part, rules in found.items()} == {
        "decoder": 194,
        "mmproj": 454 - 16 - 2 - 11 + 887 - 2 * 24,  # b1 and b2 go into a bias
        "vision": 256,
        "speech": 256,
    }
    n_used = sum(len(item.sources) for part in found.values() for item in part)
    assert list(dropped.values()) == [16, 2, 11]
    assert n_used + sum(dropped.values()) == 2047


@pytest.mark.parametrize("layout", [MICROSOFT, TRANSFORMERS], ids=["ms", "hf"])
def test_no_tensor_may_be_lacking_or_unknown(layout: Layout, tmp_path: Path) -> None:
    checkpoint = real_checkpoint(tmp_path, layout)
    config = read_config(real_checkpoint(tmp_path, MICROSOFT))
    used = [name for name in checkpoint.tensors if "head." not in name and "layers.26" not in name]
    for name in used[:: len(used) // 12]:
        if "post_layernorm" in name or ".layers.2" in name:
            continue
        tensor = checkpoint.tensors.pop(name)
        with pytest.raises(ModelFileError, match=rf"tensor '{name}' is missing"):
            resolve_parts(checkpoint, config)
        checkpoint.tensors[name + "x"] = replace(tensor, name=name + "x")
        checkpoint.tensors[name] = tensor
        with pytest.raises(ModelFileError, match=rf"tensor '{name}x' is not one of this model's"):
            resolve_parts(checkpoint, config)
        del checkpoint.tensors[name + "x"]


def test_the_real_configuration_gives_the_real_numbers(tmp_path: Path) -> None:
    config = read_config(real_checkpoint(tmp_path, MICROSOFT))
    decoder, vision, audio = config.decoder, config.vision, config.audio
    assert (decoder.n_embd, decoder.n_layer, decoder.n_head, decoder.n_head_kv) == (3072, 32, 24, 8)
    assert (decoder.n_rot, decoder.n_ctx_train, decoder.n_ctx_orig) == (96, 131072, 4096)
    assert decoder.rope_attn_factor == pytest.approx(1.190238, abs=1e-6)
    assert (vision.n_embd, vision.n_ff, vision.n_layer, vision.n_head) == (1152, 4304, 26, 16)
    assert (vision.max_crops, vision.n_patches) == (36, 1024)
    assert (audio.n_embd, audio.n_ff, audio.n_layer, audio.n_head) == (1024, 1536, 24, 16)
    assert (audio.bias_distance, audio.chunk_size, audio.n_freq) == (500, 500, 10)
    assert {n: lora.alpha / lora.rank for n, lora in config.adapters.items()} == {
        "vision": 2.0,
        "speech": 2.0,
    }
    assert len(config.rope_long) == len(config.rope_short) == 48
    assert config.rope_long[-1] == 47.77


def test_attention_factor_is_one_where_the_context_is_not_extended() -> None:
    assert rope_attn_factor(4096, 4096) == 1.0


# ---- whole conversions


def test_both_layouts_give_the_same_tensors(bundle_dir: Callable[..., Path]) -> None:
    ms, hf = files_of(bundle_dir("tiny", "ms")), files_of(bundle_dir("tiny", "hf"))
    assert ms.keys() == hf.keys() == {"decoder", "mmproj", "vision", "speech"}
    for part, file in ms.items():
        assert file.tensors.keys() == hf[part].tensors.keys()
        for name in file.tensors:
            np.testing.assert_array_equal(file.raw(name), hf[part].raw(name), err_msg=name)


def test_tensors_are_those_of_the_checkpoint(
    checkpoint_dir: CheckpointDir, bundle_dir: Callable[..., Path]
) -> None:
    source = open_checkpoint(checkpoint_dir("tiny", "ms")).tensors
    files = files_of(bundle_dir("tiny", "ms"))

    def stored(name: str) -> np.ndarray:
        tensor = source[name]
        return tensor.read(0, tensor.n_rows).reshape(tensor.shape)

    image, audio = (
        "model.embed_tokens_extend.image_embed.",
        "model.embed_tokens_extend.audio_embed.",
    )
    block = f"{audio}encoder.encoders.1."
    same = {
        ("decoder", "blk.1.ffn_up.weight"): "model.layers.1.mlp.gate_up_proj.base_layer.weight",
        ("decoder", "token_embd.weight"): "model.embed_tokens.weight",
        ("vision", "blk.0.attn_qkv.weight.lora_b"): (
            "model.layers.0.self_attn.qkv_proj.lora_B.vision.weight"
        ),
        ("speech", "blk.0.ffn_down.weight.lora_a"): (
            "model.layers.0.mlp.down_proj.lora_A.speech.weight"
        ),
        (
            "mmproj",
            "v.patch_embd.weight",
        ): f"{image}img_processor.embeddings.patch_embedding.weight",
        ("mmproj", "v.image_newline"): f"{image}sub_GN",
        ("mmproj", "v.view_seperator"): f"{image}glb_GN",
        ("mmproj", "v.blk.1.ffn_down.weight"): (
            f"{image}img_processor.encoder.layers.1.mlp.fc2.weight"
        ),
        ("mmproj", "a.conv2d.3.weight"): f"{audio}encoder.embed.conv.3.weight",
        ("mmproj", "a.blk.1.conv_dw.weight"): f"{block}conv.dw_sep_conv_1d.dw_conv.weight",
        ("mmproj", "a.blk.1.conv_pw1.weight"): f"{block}conv.glu.ext_pw_conv_1d.weight",
        ("mmproj", "a.blk.1.ffn_up_1.weight"): f"{block}feed_forward_out.net.0.linear.weight",
        ("mmproj", "mm.a.vision.2.bias"): f"{audio}audio_projection.vision.2.bias",
    }
    for (part, name), origin in same.items():
        data = files[part].data(name)
        np.testing.assert_array_equal(data, stored(origin).reshape(data.shape), err_msg=name)
    gate = [stored(f"{block}conv.glu.{name}").reshape(-1) for name in ("b1", "b2")]
    np.testing.assert_array_equal(
        files["mmproj"].data("a.blk.1.conv_pw1.bias"),
        stored(f"{block}conv.glu.ext_pw_conv_1d.bias") + np.concatenate(gate),
    )


def test_default_types_follow_the_type_rule(bundle_dir: Callable[..., Path]) -> None:
    files = files_of(bundle_dir("heads", "ms", "default"))
    types = {
        (part, name): (info.ggml_type.name, info.shape)
        for part, file in files.items()
        for name, info in file.tensors.items()
    }
    assert types["decoder", "blk.0.attn_qkv.weight"][0] == "F16"
    assert types["decoder", "blk.0.attn_norm.weight"][0] == "F32"
    assert types["mmproj", "v.blk.0.ffn_down.weight"] == ("Q8_0", (216, 320))  # 304 padded
    assert types["mmproj", "v.position_embd.weight"] == ("F32", (1024, 216))
    assert types["mmproj", "a.conv2d.2.weight"] == ("F32", (40, 1, 3, 3))
    assert types["mmproj", "a.conv2d.3.weight"] == ("Q8_0", (40, 64))
    assert types["mmproj", "a.rel_attn_bias.weight"][0] == "F32"
    assert types["vision", "blk.0.attn_qkv.weight.lora_b"][0] == "Q8_0"
    assert files["mmproj"].metadata["clip.vision.feed_forward_length"] == 304
    padded = files["mmproj"].data("v.blk.0.ffn_down.weight").reshape(216, -1, 34)
    quants_of_padding = padded[:, -1, 2 + 304 % 32 :]
    assert quants_of_padding.shape == (216, 16)
    assert not quants_of_padding.any()


def test_a_rank_that_the_block_does_not_divide_falls_back_and_is_said(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    report = convert_checkpoint(checkpoint_dir("tiny", "ms"), tmp_path / "out")
    lora = files_of(tmp_path / "out")["vision"].tensors  # rank 8
    assert lora["blk.0.attn_qkv.weight.lora_b"].ggml_type is GGMLType.F16
    assert lora["blk.0.attn_qkv.weight.lora_a"].ggml_type is GGMLType.Q8_0
    said = "vision adapter: 8 matrices with rows of 8 stored as F16, not Q8_0"
    assert said in report.notes


def test_converting_twice_gives_the_same_bytes(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        convert_checkpoint(checkpoint_dir("tiny", "ms"), tmp_path / name)
    one, two = sorted((tmp_path / "one").iterdir()), sorted((tmp_path / "two").iterdir())
    assert [p.name for p in one] == [p.name for p in two]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two, strict=True))


def test_the_bundle_id_is_the_checkpoints(checkpoint_dir: CheckpointDir, tmp_path: Path) -> None:
    tiny = checkpoint_dir("tiny", "ms")
    f16 = convert_checkpoint(tiny, tmp_path / "a").bundle_id
    assert convert_checkpoint(tiny, tmp_path / "b", types=F32).bundle_id == f16
    other = convert_checkpoint(checkpoint_dir("heads", "ms"), tmp_path / "c").bundle_id
    merged = convert_checkpoint(tiny, tmp_path / "d", merge="vision").bundle_id
    assert len({f16, other, merged}) == 3
    changed = linked_copy(tiny, tmp_path / "changed")
    shard = changed / "model-00001-of-00003.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.unlink()
    shard.write_bytes(content)
    assert convert_checkpoint(changed, tmp_path / "e").bundle_id != f16


def test_merging_adds_the_adapter_to_the_weights(
    checkpoint_dir: CheckpointDir, bundle_dir: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    report = convert_checkpoint(checkpoint_dir("heads", "ms"), out, types=F32, merge="speech")
    merged, plain = files_of(out), files_of(bundle_dir("heads", "ms"))
    assert merged.keys() == {"decoder", "mmproj"}
    assert merged["decoder"].metadata["phi4mm.merged_adapter"] == "speech"
    assert "the speech adapter is merged: only conversations with sound alone are right" in (
        report.notes
    )
    assert sum(report.dropped.values()) + report.n_used == len(
        open_checkpoint(checkpoint_dir("heads", "ms")).tensors
    )
    name = "blk.2.ffn_down.weight"
    a = plain["speech"].data(f"{name}.lora_a").astype(np.float64)
    b = plain["speech"].data(f"{name}.lora_b").astype(np.float64)
    expected = plain["decoder"].data(name) + 192 / 64 * (b @ a)
    np.testing.assert_allclose(merged["decoder"].data(name), expected, atol=1e-5)
    assert np.abs(expected - plain["decoder"].data(name)).max() > 0.1  # the control


# ---- types


def test_every_type_equals_ggmls_own() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((64, 256), np.float32)
    rows[0] = 0
    rows[1, :32] = np.arange(32) - 16  # scaled by an inexact reciprocal
    rows[2, :32] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -0.49999997, *[0] * 24]  # halves
    rows[3] = 1e-30
    for ggml_type in (GGMLType.Q8_0, GGMLType.BF16, GGMLType.F16, GGMLType.F32):
        expected = quants.quantize(rows, GGMLQuantizationType(ggml_type)).view(np.uint8)
        np.testing.assert_array_equal(encode_rows(rows, ggml_type), expected.reshape(-1))


def test_halves_are_rounded_away_from_zero() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = [127, 0.5, -2.5, 0.49999997]
    assert encode_rows(row, GGMLType.Q8_0)[2:6].view(np.int8).tolist() == [127, 1, -3, 0]


@pytest.mark.parametrize(
    ("value", "ggml_type", "message"),
    [
        (float("nan"), "f32", "NaN or infinity"),
        (float("-inf"), "q8_0", "NaN or infinity"),
        (65520.0, "f16", "beyond F16's 65504"),
        (1e8, "q8_0", "beyond Q8_0's scale"),
    ],
)
def test_weights_that_a_type_cannot_hold_are_refused(
    value: float, ggml_type: str, message: str
) -> None:
    rows = np.full((2, 32), 1, np.float32)
    rows[1, 5] = value
    with pytest.raises(NotFinite, match=message):
        encode_rows(rows, TYPES[ggml_type])
    rows[1, 5] = 65504 if ggml_type == "f16" else 3
    encode_rows(rows, TYPES[ggml_type])


# ---- what may go wrong while writing


def spoil_last_weight(folder: Path) -> None:
    """Make the last weight of a matrix of the last adapter NaN, so that much is written before."""
    tensor = open_checkpoint(folder).tensors["model.layers.1.mlp.down_proj.lora_B.speech.weight"]
    content = bytearray(tensor.path.read_bytes())
    start = content.index(bytes(tensor.data))
    content[start + len(tensor.data) - 4 : start + len(tensor.data)] = b"\x00\x00\xc0\x7f"
    tensor.path.unlink()
    tensor.path.write_bytes(content)


def test_a_weight_that_is_no_number_leaves_nothing_behind(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    folder = linked_copy(checkpoint_dir("tiny", "ms"), tmp_path / "checkpoint")
    spoil_last_weight(folder)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_down\.weight\.lora_b: holds NaN"):
        convert_checkpoint(folder, tmp_path / "made" / "out")
    assert not (tmp_path / "made").exists()


def test_an_interrupt_leaves_what_was_there_before(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert_checkpoint(checkpoint_dir("tiny", "ms"), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def interrupt(done: int, total: int) -> None:
        if done > total * 0.9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(checkpoint_dir("tiny", "ms"), out, progress=interrupt)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_progress_ends_at_the_size_of_all_files(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []
    report = convert_checkpoint(
        checkpoint_dir("tiny", "ms"), tmp_path / "out", progress=lambda *step: steps.append(step)
    )
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert steps[-1] == (size, size)
    assert size == sum(file.n_bytes for file in report.files)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_other_files_are_not_overwritten_or_joined(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert_checkpoint(checkpoint_dir("tiny", "ms"), out)
    with pytest.raises(InputError, match=r"\.gguf is in the way: a bundle's folder holds one"):
        convert_checkpoint(checkpoint_dir("tiny", "ms"), out, types=F32)
    decoder = next(out.glob("*-F16.gguf"))
    decoder.write_bytes(b"something else")
    with pytest.raises(InputError, match="is there already and of another model"):
        convert_checkpoint(checkpoint_dir("tiny", "ms"), out)
    assert decoder.read_bytes() == b"something else"


def test_too_little_space_is_said_with_numbers(
    checkpoint_dir: CheckpointDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"the files need 0\.\d\d GB, 0\.00 GB are free"):
        convert_checkpoint(checkpoint_dir("tiny", "ms"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_is_the_users_error(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, must be a folder"):
        convert_checkpoint(checkpoint_dir("tiny", "ms"), tmp_path / "file" / "out")


# ---- names


def test_names_follow_the_checkpoints_folder(tmp_path: Path) -> None:
    cached = tmp_path / "models--microsoft--Phi-4-multimodal-instruct" / "snapshots" / "93f923e1a7"
    config = {"_name_or_path": "somebody/something", "model_type": "phi4mm"}
    assert checkpoint_name(cached, config, None) == "Phi-4-multimodal-instruct"
    assert checkpoint_name(tmp_path / "my model (2)", config, None) == "my-model-2"
    assert checkpoint_name(tmp_path / "m", config, "vision") == "m-vision-merged"
    assert adapter_name(tmp_path / "charts-vision-lora", "vision") == "charts"
    assert adapter_name(tmp_path / "vision-lora", "vision") == "adapter"
    cached = tmp_path / "models--me--charts-vision-lora" / "snapshots" / "93f923e1a7"
    assert adapter_name(cached, "vision") == "charts"


@pytest.mark.parametrize(
    ("name_or_path", "name"),
    [
        ("microsoft/Phi-4-multimodal-instruct", "Phi-4-multimodal-instruct"),
        ("/data/tuned/checkpoint-500/", "checkpoint-500"),
        ("/data/0123456789abcdef0123456789abcdef01234567", "phi4mm"),
        ("", "phi4mm"),
        (None, "phi4mm"),
    ],
)
def test_a_hash_is_no_name(tmp_path: Path, name_or_path: str | None, name: str) -> None:
    folder = tmp_path / "93f923e1a7727d1c4f446756212d9d3e8fcc5d81"
    config: dict[str, object] = {"model_type": "phi4mm"}
    if name_or_path is not None:
        config["_name_or_path"] = name_or_path
    assert checkpoint_name(folder, config, None) == name
    assert adapter_name(folder, "vision") == "adapter"
    assert checkpoint_name(tmp_path / "2026-11-30", config, None) == "2026-11-30"


# ---- the command line


def run_cli(*args: str | Path) -> int:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["convert", *map(str, args)])
    code: int = parsed.run(parsed)
    return code


def test_command_line(
    checkpoint_dir: CheckpointDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run_cli(checkpoint_dir("tiny", "ms"), "-o", out, "--type", "Q8_0") == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no bar where stderr is no terminal
    for path in out.iterdir():
        assert path.name in captured.out
    assert "dropped 11: pooling head of the vision encoder, never run" in captured.out
    assert "Q8_0" in next(p.name for p in out.iterdir() if not p.name.startswith("mmproj"))


def test_command_line_knows_every_type() -> None:
    assert set(cli.TYPE_NAMES) == set(TYPES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--adapter-for", "b", "--merge", "vision"], "--merge has no meaning with --adapter-for"),
        (["--adapter-for", "b", "--type", "f16"], "--type has no meaning with --adapter-for"),
        (["--as", "vision"], "--as has no meaning without --adapter-for"),
        ([], "is a LoRA adapter: say which bundle with --adapter-for"),
    ],
)
def test_flags_without_effect_are_refused(
    flags: list[str], message: str, checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    adapter = checkpoint_dir("tiny", "ms") / "vision-lora"
    with pytest.raises(InputError, match=message):
        run_cli(adapter, "-o", tmp_path / "out", *flags)


def test_a_link_in_the_way_of_a_partial_file_is_not_followed(
    checkpoint_dir: CheckpointDir, tmp_path: Path
) -> None:
    out, precious = tmp_path / "bundle", tmp_path / "precious"
    first = convert_checkpoint(checkpoint_dir("tiny"), out)
    name = first.files[0].path.name
    precious.write_text("keep me")
    (out / f"{name}.part").symlink_to(precious)
    convert_checkpoint(checkpoint_dir("tiny"), out)
    assert precious.read_text() == "keep me"
    assert not (out / name).is_symlink()
