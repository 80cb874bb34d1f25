"""The mmproj of `phi4mm export`: stock llama.cpp loads it and computes what this model does."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from measured import largest_file, run, sample_decoder
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from stock_projector import encode
from stock_server import StockServer
from test_export_stock import exported

from phi4mm import Phi4MM, SamplingParams, user_message
from phi4mm.cli.options import sample_bundle
from phi4mm.export.stock_vision import OwnProjector, adapter_tensors
from phi4mm.native.library import load

pytest.importorskip("xllamacpp")

QUESTION = "Read the text in the picture."
VISION = [{"id": 0, "scale": 1}]


def relative(found: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """Root mean square of the difference, in parts of the right values'."""
    return float(np.sqrt(np.square(found - right).mean() / np.square(right).mean()))


@pytest.fixture(scope="module")
def encodings(
    bundle_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A picture of one whole crop: stock llama.cpp's embeddings, and the end of ours."""
    folder = tmp_path_factory.mktemp("pictures")
    bundle = bundle_dir("tiny")
    assert run("export", "llama.cpp", bundle, "-o", folder) == 0
    (mmproj,) = folder.glob("mmproj-*.gguf")
    picture = folder / "noise.png"
    noise = np.random.default_rng(0).integers(0, 256, (448, 448, 3), np.uint8)
    Image.fromarray(noise).save(picture)
    with Phi4MM(bundle, n_ctx=256, n_threads=1, kv_type="f32") as model:
        ours = model.encode_image(picture)
    return encode(Path(load().path), mmproj, picture), ours[-(1 + 16 * 17) :]


def test_stock_encodes_a_crop_as_ours(
    encodings: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    """Up to F16 weights and the other form of GELU: 7e-4 when this was written."""
    theirs, ours = encodings
    assert len(theirs) == 1 + 16 * 16 + 1
    rows = ours[1:].reshape(16, 17, -1)
    assert relative(theirs[1:-1], rows[:, :-1].reshape(256, -1)) < 2e-3
    assert relative(theirs[0], ours[0]) < 1e-5
    assert relative(theirs[-1], rows[-1, -1]) < 1e-5


def test_a_projection_of_the_wrong_order_is_seen(
    encodings: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    """A control: the comparison tells one place of the picture from another."""
    theirs, ours = encodings
    rows = ours[1:].reshape(16, 17, -1)[:, :-1]
    assert relative(theirs[1:-1], rows.transpose(1, 0, 2).reshape(256, -1)) > 0.02


def test_the_norm_is_undone_whatever_it_is_given() -> None:
    """The stock projector in float64, by its tensors: with values that are large and one-sided."""
    draw = np.random.default_rng(1)
    shapes = ((96, 64), (96,), (96, 96), (96,), (64,), (64,))
    own = OwnProjector(*(draw.normal(0.05, 0.3, shape).astype(np.float32) for shape in shapes))
    made = {name: values.astype(np.float64) for name, values in adapter_tensors(own).items()}
    x = draw.normal(5, 3, 64)
    cell = np.repeat(x, 4).reshape(64, 2, 2)
    c = np.tensordot(made["conv.weight"], cell, 3) + made["conv.bias"]
    z = made["linear.linear.weight"] @ c
    z = (z - z.mean()) / np.sqrt(z.var() + 1e-6)
    z = z * made["linear.norm1.weight"] + made["linear.norm1.bias"]
    assert abs(z[:96]).max() > 20
    h = z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    gate = made["linear.gate.weight"] @ h
    y = made["linear.dense_4h_to_h.weight"] @ (
        gate / (1 + np.exp(-gate)) * (made["linear.dense_h_to_4h.weight"] @ h)
    )
    assert relative(y, own.project(x.astype(np.float32))) < 2e-4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockServer]:
    with StockServer(exported(tmp_path_factory.mktemp("export"), sample_bundle())) as server:
        yield server


WORDS = ("bus", "cat", "house", "monkey", "summer", "train")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A printed word in the middle of one crop, by the word; and nothing."""
    folder = tmp_path_factory.mktemp("words")
    made = {}
    for word in (*WORDS, ""):
        image = Image.new("RGB", (168, 168), "white")
        font = ImageFont.load_default(32)
        ImageDraw.Draw(image).text((84, 84), word, fill="black", font=font, anchor="mm")
        made[word] = folder / f"{word or 'nothing'}.png"
        image.save(made[word])
    return made


def ask(server: StockServer, picture: Path, **more: object) -> str:
    """What the stock server reads in a picture."""
    url = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    answer = server.post("/v1/chat/completions", body | more)
    text: str = answer["choices"][0]["message"]["content"]
    return text


@pytest.fixture(scope="module")
def read_by_us(pictures: dict[str, Path]) -> set[str]:
    """The words that the sample reads here: it does not read all."""
    read = set()
    with Phi4MM(sample_bundle(), n_ctx=512, n_threads=1) as model:
        for word in WORDS:
            question = user_message(QUESTION, images=[pictures[word]])
            events = model.generate([question], SamplingParams(temperature=0, max_tokens=8))
            if "".join(event.text for event in events) == word:
                read.add(word)
    return read


def test_stock_reads_the_words_that_we_read(
    server: StockServer, pictures: dict[str, Path], read_by_us: set[str]
) -> None:
    """Each word is right of one picture alone: no habit of the sample's passes for reading."""
    assert len(read_by_us) >= 2
    read = {word for word in read_by_us if ask(server, pictures[word], lora=VISION) == word}
    assert read == read_by_us
    assert ask(server, pictures[""], lora=VISION) not in WORDS


def test_the_adapter_is_needed(
    server: StockServer, pictures: dict[str, Path], read_by_us: set[str]
) -> None:
    """Embeddings of a picture lie near those of its words, so that the base may repeat one."""
    right = [word for word in read_by_us if ask(server, pictures[word]) == word]
    assert len(right) < len(read_by_us) / 2


# ---- what is written, and what is said


def test_the_loss_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert any("one crop of 168x168 pixels" in line and "without HD crops" in line for line in said)
    assert any(line.startswith(f"wrote {tmp_path}/mmproj-") for line in said)
    assert "--mmproj" in (tmp_path / "llama-server.sh").read_text()


def test_it_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path, "--no-mmproj") == 0
    assert not list(tmp_path.glob("*.gguf"))
    assert "answers text only" in capsys.readouterr().out
    assert "--mmproj" not in (tmp_path / "llama-server.sh").read_text()


def test_ollama_is_given_it_with_the_vision_adapter(tmp_path: Path) -> None:
    assert run("export", "ollama", sample_bundle(), "-o", tmp_path, "--adapter", "vision") == 0
    (mmproj,) = tmp_path.glob("*.gguf")
    lines = (tmp_path / "Modelfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM ")][1] == f"FROM {mmproj}"


@pytest.mark.parametrize("words", [[], ["--adapter", "speech"]])
def test_ollama_without_the_vision_adapter_is_not(tmp_path: Path, words: list[str]) -> None:
    assert run("export", "ollama", sample_bundle(), "-o", tmp_path, *words) == 0
    assert not list(tmp_path.glob("*.gguf"))


def test_lm_studio_is_given_it_with_a_merged_decoder(
    tmp_path: Path, checkpoint_dir: Callable[[str], Path]
) -> None:
    bundle, out = tmp_path / "merged", tmp_path / "models"
    assert run("convert", checkpoint_dir("tiny"), "-o", bundle, "--merge", "vision") == 0
    assert run("export", "lmstudio", bundle, "-o", out) == 0
    decoder, mmproj = sorted(out.glob("*/*/*.gguf"), key=lambda p: p.name.startswith("mmproj"))
    assert decoder.parent == mmproj.parent
    assert decoder.is_symlink()
    assert not mmproj.is_symlink()


def test_a_bundle_without_encoders_has_none(tmp_path: Path) -> None:
    assert run("export", "llama.cpp", sample_decoder(), "-o", tmp_path / "with") == 0
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "decoder.gguf").write_bytes(sample_decoder().read_bytes())
    assert run("export", "llama.cpp", alone, "-o", tmp_path / "without") == 0
    assert list((tmp_path / "with").glob("*.gguf"))
    assert not list((tmp_path / "without").glob("*.gguf"))


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 1000})())
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path / "out") == 2
    assert "GB are free" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("n_bytes", [1_000_000, 100], ids=["the mmproj", "a text"])
def test_a_file_that_cannot_be_completed_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_bytes: int
) -> None:
    flags = ["--no-mmproj"] if n_bytes < 1000 else []
    with largest_file(n_bytes):
        assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path / "out", *flags) == 2
    assert "File too large" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


def test_a_failed_export_leaves_what_was_there(tmp_path: Path) -> None:
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with largest_file(1000):
        assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path) == 0
    (mmproj,) = tmp_path.glob("*.gguf")
    right = mmproj.read_bytes()
    mmproj.write_bytes(b"old")
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path) == 0
    assert mmproj.read_bytes() == right


def test_the_bundle_itself_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files of encoders in it would make it ambiguous."""
    bundle = shutil.copytree(sample_bundle(), tmp_path / "bundle")
    before = sorted(bundle.iterdir())
    assert run("export", "llama.cpp", bundle, "-o", bundle) == 2
    assert "holds the bundle" in capsys.readouterr().err
    assert sorted(bundle.iterdir()) == before
    assert run("export", "llama.cpp", bundle, "-o", bundle, "--no-mmproj") == 0
    assert run("inspect", bundle) == 0


def test_a_folder_in_the_way_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "llama-server.sh").mkdir()
    assert run("export", "llama.cpp", sample_bundle(), "-o", tmp_path) == 2
    assert "a folder, in the way of a file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["llama-server.sh"]


def test_llama_cpp_is_given_none_without_the_vision_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder alone would make pictures into noise for the decoder."""
    bundle = shutil.copytree(sample_bundle(), tmp_path / "bundle")
    (adapter,) = bundle.glob("*vision-lora*")
    adapter.unlink()
    assert run("export", "llama.cpp", bundle, "-o", tmp_path / "out") == 0
    assert "answers text only" in capsys.readouterr().out
    assert not list(tmp_path.glob("out/*.gguf"))


@pytest.mark.parametrize(("merged", "n_files"), [("vision", 1), ("speech", 0)])
def test_a_merged_decoder_is_given_it_if_the_vision_adapter_is_in_it(
    tmp_path: Path, checkpoint_dir: Callable[[str], Path], merged: str, n_files: int
) -> None:
    bundle = tmp_path / "merged"
    assert run("convert", checkpoint_dir("tiny"), "-o", bundle, "--merge", merged) == 0
    for target in ("llama.cpp", "ollama"):
        out = tmp_path / target
        assert run("export", target, bundle, "-o", out) == 0
        assert len(list(out.glob("*.gguf"))) == n_files
    assert "--lora-scaled" not in (tmp_path / "llama.cpp" / "llama-server.sh").read_text()


def test_without_a_folder_it_is_said_that_one_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("export", "llama.cpp", sample_bundle()) == 0
    assert "-o FOLDER writes an encoder for pictures" in capsys.readouterr().out
