"""`phi4mm imatrix` from pictures and clips: what is seen under an adapter, and how it mixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from quantized import decoder_of, run, weights

from oracle.stock_imatrix import TEXT
from phi4mm.errors import InputError
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.llama import Context
from phi4mm.prompt.chunk import TextChunk
from phi4mm.prompt.message import user_message
from phi4mm.quantize.calibration import (
    Calibration,
    Conversation,
    conversations_about,
    read_conversations,
)
from phi4mm.quantize.collect import Collected, collect_imatrix
from phi4mm.quantize.imatrix_file import ImportanceMatrix, read_imatrix

if TYPE_CHECKING:
    from parity.fixtures import BundleDir, CheckpointDir, OpenModel

PICTURE, CLIP = "i150x333.png", "a16000_8000.wav"
QKV, LAST = "blk.{}.attn_qkv.weight", ("blk.1.ffn_up.weight", "blk.1.ffn_down.weight")
OUTPUT = "token_embd.weight"


@pytest.fixture(scope="module")
def f32(bundle_dir: BundleDir) -> Path:
    return bundle_dir("tiny")


@pytest.fixture(scope="module")
def talks(media_dir: Path) -> dict[str, Conversation]:
    """A conversation of each kind."""
    picture, clip = (str(media_dir / PICTURE),), (str(media_dir / CLIP),)
    return {
        "vision": Conversation("picture", picture, (), "What is this?", "A ripple."),
        "speech": Conversation("clip", (), clip, "What is said?"),
        "both": Conversation("both", picture, clip),
        "text": Conversation("text", prompt="Who are you?", answer="Nobody."),
    }


def collect(bundle: Path, *conversations: Conversation) -> Collected:
    return collect_imatrix(bundle, Calibration(("x",), conversations=conversations), n_threads=1)


def apart(a: ImportanceMatrix, b: ImportanceMatrix) -> float:
    """The largest relative difference of the mean squares of a matrix's inputs."""
    return max(
        float(np.linalg.norm(a.sums[name].mean - sums.mean) / np.linalg.norm(sums.mean))
        for name, sums in b.sums.items()
    )


# ---- what is collected


@pytest.mark.parametrize(
    ("kind", "projection"), [("vision", None), ("speech", "speech"), ("both", "vision")]
)
def test_the_first_matrix_sees_the_soft_tokens_between_the_text(
    f32: Path,
    open_model: OpenModel,
    talks: dict[str, Conversation],
    kind: str,
    projection: Any,
) -> None:
    talk, file, model = talks[kind], decoder_of(f32), open_model("tiny")
    rows = [model.encode_image(image) for image in talk.images]
    rows += [model.encode_audio(audio, projection) for audio in talk.audios]
    prompt = model.prompts.chat([user_message(talk.prompt, talk.images, talk.audios)])
    ids = [id_ for chunk in prompt.chunks if isinstance(chunk, TextChunk) for id_ in chunk.ids]
    if talk.answer is not None:
        ids += [*model.tokenizer.encode(talk.answer), model.tokenizer.special_id("<|end|>")]
    embeddings = np.concatenate([*rows, weights(file, OUTPUT)[ids]])
    eps = float(np.float32(file.metadata["phi3.attention.layer_norm_rms_epsilon"]))
    rms = np.sqrt(np.mean(embeddings**2, axis=1, keepdims=True) + eps)
    expected = np.mean((embeddings / rms * weights(file, "blk.0.attn_norm.weight")) ** 2, axis=0)

    found = collect(f32, talk).imatrix.sums
    np.testing.assert_allclose(found[QKV.format(0)].mean, expected, rtol=1e-4)
    assert found[QKV.format(0)].count == len(embeddings)


def test_soft_tokens_ask_for_no_logits_and_text_does(
    f32: Path, open_model: OpenModel, talks: dict[str, Conversation]
) -> None:
    """As in a request: only what comes before a token of text goes through the last matrices."""
    talk = talks["both"]
    prompt = open_model("tiny").prompts.chat([user_message("", talk.images, talk.audios)])
    found = collect(f32, talk).imatrix.sums
    for name, sums in found.items():
        is_last = name in (*LAST, OUTPUT)
        assert sums.count == (prompt.n_text_tokens if is_last else prompt.n_tokens), name


@pytest.mark.parametrize(("adapter", "kinds"), [("vision", "vision both"), ("speech", "speech")])
def test_inputs_under_an_adapter_are_those_of_the_merged_decoder(
    checkpoint_dir: CheckpointDir,
    f32: Path,
    talks: dict[str, Conversation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    adapter: str,
    kinds: str,
) -> None:
    flags = ("--type", "f32", "--mmproj-type", "f32", "--merge", adapter)
    assert run("convert", checkpoint_dir("tiny"), "-o", tmp_path, *flags) == 0
    chosen = [talks[kind] for kind in kinds.split()]
    merged = collect(tmp_path, *chosen).imatrix
    assert apart(collect(f32, *chosen).imatrix, merged) < 1e-3, "but for the F16 cache's rounding"

    # the control: without its adapter the same conversation gives other inputs
    monkeypatch.setattr(Context, "set_adapters", lambda *_: None)
    bare = collect(f32, *chosen).imatrix
    assert apart(bare, merged) > 1e-2
    first = QKV.format(0)  # which comes before any adapter's work
    np.testing.assert_allclose(bare.sums[first].mean, merged.sums[first].mean, rtol=1e-4)


def test_media_show_what_text_does_not(f32: Path, talks: dict[str, Conversation]) -> None:
    seen, read = (collect(f32, talks[kind]).imatrix for kind in ("vision", "text"))
    assert apart(seen, read) > 0.1


def test_every_source_adds_to_one_matrix(
    f32: Path, talks: dict[str, Conversation], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    written = Calibration(("text.txt",), text, chunk_size=96, max_chunks=2)
    alone = [collect_imatrix(f32, written, n_threads=1), *(collect(f32, t) for t in talks.values())]
    mixed = collect_imatrix(
        f32,
        Calibration(("text.txt", "x"), text, 96, 2, tuple(talks.values())),
        n_threads=1,
    )
    assert mixed.imatrix.n_chunks == 2 + len(talks)
    assert mixed.imatrix.datasets == ("text.txt", "x")
    for name, sums in mixed.imatrix.sums.items():
        parts = [one.imatrix.sums[name] for one in alone]
        assert sums.count == sum(part.count for part in parts)
        together = sum((part.squares for part in parts), np.float32(0))
        np.testing.assert_allclose(sums.squares, together, rtol=1e-5)
    n_tokens = {name: sum(one.n_tokens.get(name, 0) for one in alone) for name in mixed.n_tokens}
    assert mixed.n_tokens == n_tokens
    assert set(n_tokens) == {None, "vision", "speech"}


def test_beyond_the_original_context_the_long_rope_factors_are_used(
    f32: Path, open_model: OpenModel, media_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    init = Context.__init__

    def note(self: Context, model: Any, params: Any, *args: Any, **more: Any) -> None:
        sizes.append(params.n_ctx_seq)
        init(self, model, params, *args, **more)

    monkeypatch.setattr(Context, "__init__", note)
    n_orig = open_model("tiny").bundle.decoder.hparams.n_ctx_orig
    images = (str(media_dir / "i1000x450.png"),)
    talk = Conversation("long", images, prompt="so " * n_orig)
    n_tokens = collect(f32, talk).n_tokens["vision"]
    assert sizes == [n_tokens]
    assert n_tokens > n_orig


# ---- what it is read from


def manifest(folder: Path, *lines: object) -> Path:
    path = folder / "talks.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_a_manifest_has_what_is_asked_and_answered(tmp_path: Path) -> None:
    path = manifest(
        tmp_path,
        {"images": ["a.png", "b.png"], "prompt": "Which?", "answer": "The first."},
        {"audio": "a.wav"},
        {"prompt": "Who?"},
    )
    where = [f"{path}:{n}" for n in (1, 2, 3)]
    pictures = (str(tmp_path / "a.png"), str(tmp_path / "b.png"))
    assert read_conversations(path) == [
        Conversation(where[0], pictures, (), "Which?", "The first."),
        Conversation(where[1], (), (str(tmp_path / "a.wav"),)),
        Conversation(where[2], prompt="Who?"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"answer": "Yes."}, "talks.jsonl:1: must have 'prompt', 'image' or 'audio'"),
        ({"prompt": ""}, "'prompt' is '', must be a string, not empty"),
        ({"image": ["a.png"]}, "'image' is .*, must be a string"),
        ({"images": []}, "'images' is .*, must be a list of strings"),
        ({"prompt": "x", "answers": ["y"]}, "unknown fields answers"),
        ([], "must be an object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_conversations(manifest(tmp_path, line))


def test_a_folder_gives_the_files_of_one_kind(media_dir: Path, tmp_path: Path) -> None:
    clips = conversations_about(media_dir, "audio", "Say it.")
    assert {Path(clip.audios[0]).suffix for clip in clips} == {".wav"}
    assert {(clip.prompt, clip.images) for clip in clips} == {("Say it.", ())}
    pictures = conversations_about(media_dir, "image", "Look.")
    assert len(clips) + len(pictures) == len(list(media_dir.iterdir()))
    with pytest.raises(InputError, match="no picture in this folder"):
        conversations_about(tmp_path, "image", "Look.")
    with pytest.raises(InputError, match="no such folder"):
        conversations_about(tmp_path / "absent", "audio", "Hear.")


def test_what_is_wrong_is_found_before_anything_is_computed(
    f32: Path, talks: dict[str, Conversation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Context, "decode", never)
    absent = Conversation("talks.jsonl:7", (str(tmp_path / "absent.png"),))
    with pytest.raises(InputError, match=r"talks\.jsonl:7: .*absent\.png: no such file"):
        collect(f32, talks["vision"], absent)
    with pytest.raises(InputError, match=r"talks\.jsonl:8: has \d+ tokens, the model takes"):
        collect(f32, Conversation("talks.jsonl:8", prompt="so " * 200_000))
    with pytest.raises(InputError, match="nothing to compute"):
        collect(f32)


def test_a_bundle_without_the_adapter_is_refused(
    f32: Path, talks: dict[str, Conversation], tmp_path: Path
) -> None:
    with Bundle.open(f32) as bundle:
        decoder = bundle.decoder.path
    (tmp_path / decoder.name).symlink_to(decoder)
    with pytest.raises(InputError, match=r"picture: .*no vision encoder"):
        collect(tmp_path, talks["vision"])


# ---- the command


def test_the_command_mixes_all_sources_and_quantize_takes_the_result(
    bundle_dir: BundleDir, media_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    bundle, out = bundle_dir("tiny", types="default"), tmp_path / "imatrix.gguf"
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / PICTURE).symlink_to(media_dir / PICTURE)
    (photos / "notes.txt").write_text("not looked at", encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    talks = manifest(tmp_path, {"audio": str(media_dir / CLIP), "answer": "Hello."})
    flags = ("-f", tmp_path / "text.txt", "-c", 96, "--chunks", 1, "-t", 1)
    media = ("--conversations", talks, "--images", photos)
    assert run("imatrix", bundle, *flags, *media, "-o", out) == 0
    said = capsys.readouterr().out
    assert "1 chunks of 96 tokens, 2 conversations, 96 tokens with no adapter" in said
    assert "tokens with the vision adapter" in said
    assert read_imatrix(out).datasets == ("text.txt", "talks.jsonl", "photos")
    assert run("quantize", bundle, "Q4_K_S", "-o", tmp_path / "q4", "--imatrix", out) == 0
    assert "weighted error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give a text (-f), --conversations, --images or --audio"),
        (("--images", ".", "-c", "64"), "-c has no meaning without a text"),
        (("--images", ".", "--chunks", "2"), "--chunks has no meaning without a text"),
    ],
)
def test_flags_that_make_no_sense(
    f32: Path, tmp_path: Path, capsys: Any, flags: tuple[str, ...], message: str
) -> None:
    assert run("imatrix", f32, "-o", tmp_path / "i.gguf", *flags) == 2
    assert message in capsys.readouterr().err
