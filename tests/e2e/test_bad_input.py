"""Malformed files through the command line: one line that names the file, exit code 2, at once."""

import json
import shutil
import signal
import struct
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from PIL import Image

from phi4mm.cli.main import main
from phi4mm.modelfile.bundle import Bundle

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def png(width, height):
    """A PNG header that promises these pixels."""
    out = BytesIO()
    Image.new("L", (1, 1)).save(out, "png")
    data = bytearray(out.getvalue())
    struct.pack_into(">II", data, 16, width, height)
    return bytes(data)


def encoded(image_format, size=(64, 64)):
    out = BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(out, image_format)
    return out.getvalue()


def wav(n=16000, rate=16000):
    out = BytesIO()
    sf.write(out, np.zeros(n, np.float32), rate, format="WAV")
    return out.getvalue()


PICTURES = {
    "empty.png": b"",
    "text.png": b"not a picture at all",
    "zeros.jpg": bytes(5000),
    "lfs.png": LFS_POINTER,
    "cut.png": encoded("png", (400, 400))[:200],
    "cut.jpg": encoded("jpeg", (400, 400))[:900],
    "cut.webp": encoded("webp", (400, 400))[:60],
    "cut.gif": encoded("gif", (400, 400))[:40],
    "bomb.png": png(60000, 60000),
    "nothing.png": png(0, 0),
    "sound.png": wav(),
    "thin.png": encoded("png", (30000, 2)),
}
CLIPS = {
    "empty.wav": b"",
    "text.wav": b"not a clip at all",
    "zeros.mp3": bytes(5000),
    "lfs.flac": LFS_POINTER,
    "header.wav": wav()[:20],
    "no-samples.wav": wav(n=0),
    "short.wav": wav(n=399),
    "riff.wav": b"RIFF\xff\xff\xff\xffWAVE",
    "ogg.ogg": b"OggS" + bytes(100),
    "flac.flac": b"fLaC" + bytes(100),
    "picture.wav": encoded("png"),
}
# what is done to the bytes of a good decoder file
GGUFS = {
    "empty": lambda data: b"",
    "text": lambda data: b"hello, this is no model file",
    "lfs": lambda data: LFS_POINTER,
    "magic": lambda data: b"GGML" + data[4:],
    "version-1": lambda data: data[:4] + struct.pack("<I", 1) + data[8:],
    "version-99": lambda data: data[:4] + struct.pack("<I", 99) + data[8:],
    "big-endian": lambda data: data[:4] + struct.pack(">I", 3) + data[8:],
    "many-tensors": lambda data: data[:8] + struct.pack("<Q", 1 << 60) + data[16:],
    "no-tensors": lambda data: data[:8] + struct.pack("<Q", 0) + data[16:],
    "many-keys": lambda data: data[:16] + struct.pack("<Q", 1 << 60) + data[24:],
    "long-key": lambda data: data[:24] + struct.pack("<Q", 1 << 62) + data[32:],
    "header-only": lambda data: data[:24],
    "cut-in-metadata": lambda data: data[:400],
    "cut-in-data": lambda data: data[: len(data) // 2],
    "last-byte": lambda data: data[:-40],
    "architecture": lambda data: data.replace(b"phi3", b"phi9"),
    "other-type": lambda data: data.replace(b"phi3.block_count", b"phi3.block_XXXXX"),
    "pre-tokenizer": lambda data: data.replace(b"gpt-4o", b"gpt-9o"),
    "tensor-name": lambda data: data.replace(b"blk.0.attn_qkv", b"blk.9.attn_qkv"),
    "rope-type": lambda data: data.replace(b"longrope", b"shortrop"),
}


@pytest.fixture
def refuse(capsys, tmp_path):
    """Runs a command that must be refused; returns its one line."""

    def run(*args):
        started = time.monotonic()
        code = main([str(arg) for arg in args])
        seconds = time.monotonic() - started
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        lines = [line for line in captured.err.splitlines() if "built-in sample" not in line]
        assert len(lines) == 1, lines
        assert lines[0].startswith("phi4mm: ")
        assert seconds < 3
        return lines[0]

    return run


@pytest.mark.parametrize("name", PICTURES)
def test_picture(name, refuse, tmp_path):
    path = tmp_path / name
    path.write_bytes(PICTURES[name])
    assert name in refuse("run", "-p", "?", "--image", path)


@pytest.mark.parametrize("name", CLIPS)
def test_clip(name, refuse, tmp_path):
    path = tmp_path / name
    path.write_bytes(CLIPS[name])
    assert name in refuse("run", "-p", "?", "--audio", path)


@pytest.mark.parametrize("name", GGUFS)
def test_decoder(name, refuse, tmp_path, sample_path):
    with Bundle.open(sample_path) as bundle:
        data = bundle.decoder.path.read_bytes()
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(GGUFS[name](data))
    assert name in refuse("run", "-p", "?", "-m", path)


def test_parts_in_each_others_place(refuse, sample_path):
    with Bundle.open(sample_path) as bundle:
        decoder, mmproj = bundle.decoder.path, bundle.mmproj.path
        vision = bundle.adapters["vision"].path
    assert mmproj.name in refuse("run", "-p", "?", "-m", mmproj)
    assert decoder.name in refuse("run", "-p", "?", "-m", decoder, "--mmproj", decoder)
    assert mmproj.name in refuse("run", "-p", "?", "-m", decoder, "--vision-lora", mmproj)
    assert vision.name in refuse("run", "-p", "?", "-m", decoder, "--speech-lora", vision)


def test_a_part_of_another_model(refuse, sample_path, bundle_dir):
    with Bundle.open(bundle_dir("heads")) as bundle:
        other = bundle.mmproj.path
    assert other.name in refuse("run", "-p", "?", "-m", sample_path, "--mmproj", other)


def test_media_without_an_encoder(refuse, sample_path, sample_media, tmp_path):
    with Bundle.open(sample_path) as bundle:
        alone = shutil.copy(bundle.decoder.path, tmp_path)
    assert "encoder" in refuse(
        "run", "-p", "?", "-m", alone, "--image", sample_media / "picture.png"
    )
    assert "encoder" in refuse("run", "-p", "?", "-m", alone, "--audio", sample_media / "clip.flac")


def _json(path: Path, change):
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


CHECKPOINTS = {
    "no config": lambda d: (d / "config.json").unlink(),
    "broken config": lambda d: (d / "config.json").write_text("{"),
    "wrong model": lambda d: _json(d / "config.json", lambda c: c.update(model_type="llama")),
    "wrong width": lambda d: _json(d / "config.json", lambda c: c.update(hidden_size=123)),
    "no tokenizer": lambda d: (d / "tokenizer.json").unlink(),
    "no index": lambda d: (d / "model.safetensors.index.json").write_text("[]"),
    "no shard": lambda d: (d / "model-00002-of-00003.safetensors").unlink(),
    "pointer": lambda d: (d / "model-00002-of-00003.safetensors").write_bytes(LFS_POINTER),
    "cut shard": lambda d: (d / "model-00002-of-00003.safetensors").write_bytes(
        (d / "model-00002-of-00003.safetensors").read_bytes()[:5000]
    ),
    "empty shard": lambda d: (d / "model-00002-of-00003.safetensors").write_bytes(b""),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint(name, refuse, tmp_path, checkpoint_dir):
    checkpoint = shutil.copytree(checkpoint_dir("tiny"), tmp_path / "checkpoint")
    CHECKPOINTS[name](checkpoint)
    out = tmp_path / "bundle"
    assert str(checkpoint) in refuse("convert", checkpoint, "-o", out)
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_conversion_leaves_nothing(number, tmp_path, checkpoint_dir):
    out = tmp_path / "bundle"
    command = [sys.executable, "-m", "phi4mm", "convert", checkpoint_dir("heads"), "-o", out]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)
    while process.poll() is None and not (out.is_dir() and list(out.glob("*.part"))):
        time.sleep(0.001)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    if process.returncode != 0:  # it may have been done already
        assert process.returncode == 128 + number
        assert b"Traceback" not in stderr
        assert not out.exists()
    assert not list(tmp_path.rglob("*.part"))
