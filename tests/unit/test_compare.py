"""`phi4mm compare`: the numbers are those of the single commands, and a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from quantized import run

from oracle.stock_imatrix import TEXT
from phi4mm.api import Phi4MM
from phi4mm.evals import material
from phi4mm.inspection import inspect_path
from phi4mm.measurement.record import read_record
from phi4mm.quantize.imatrix_file import ImportanceMatrix, read_imatrix, write_imatrix

if TYPE_CHECKING:
    from parity.fixtures import BundleDir

FLAGS = ("-c", 64, "--chunks", 2, "-t", 1)


@pytest.fixture(scope="module")
def f16(bundle_dir: BundleDir) -> Path:
    return bundle_dir("tiny", types="default")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def imatrix(f16: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imatrix") / "i.gguf"
    assert run("imatrix", f16, "-f", text, "-c", 96, "-t", 1, "-o", path) == 0
    return path


def compare(capsys: Any, f16: Path, text: Path, out: Path, *flags: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run("compare", f16, "-f", text, "-o", out, *FLAGS, "--json", *flags) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def test_rows_are_what_the_single_commands_measure(
    f16: Path, text: Path, tmp_path: Path, capsys: Any
) -> None:
    base, q4 = compare(capsys, f16, text, tmp_path / "types", "--types", "q4_k_s")
    logits = tmp_path / "base.bin"
    assert run("quantize", f16, "Q4_K_S", "-o", tmp_path / "q4") == 0
    capsys.readouterr()
    assert run("perplexity", f16, "-f", text, *FLAGS, "--save-logits", logits, "--json") == 0
    source = json.loads(capsys.readouterr().out)
    flags = ("--kl-divergence", "--base", logits, "-t", 1, "--json")
    assert run("perplexity", tmp_path / "q4", *flags) == 0
    found = json.loads(capsys.readouterr().out)

    assert base["name"] == "F16"
    assert base["kl"] is None
    assert base["perplexity"] == source["perplexity"]["value"]
    assert (q4["kl"], q4["kl_error"]) == (found["kl"]["value"], found["kl"]["error"])
    assert (q4["kl_99"], q4["same_top"]) == (found["kl_99"], found["same_top"]["value"])
    assert q4["perplexity"] == found["perplexity"]["value"]
    (decoder,) = (f for f in inspect_path(tmp_path / "q4").files if f.role == "decoder")
    assert q4["n_bytes"] == decoder.n_bytes
    assert q4["bits_per_weight"] == decoder.bits_per_weight
    assert set(q4["errors"]) == {"token_embd", "attn_qkv", "attn_output", "ffn_up", "ffn_down"}
    assert 0.01 < q4["errors"]["ffn_up"] < 0.2
    assert sorted(path.name for path in (tmp_path / "types").iterdir()) == [
        "Q4_K_S.json", "base.json", "base.logits",
    ]  # fmt: skip


def test_a_stopped_run_goes_on_where_it_was(
    f16: Path, text: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, done = material.measure_divergence, []

    def stop_at_the_second(*args: Any, **more: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(None)
        return measure(*args, **more)

    monkeypatch.setattr(material, "measure_divergence", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        interrupted(f16, text, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"base.json", "base.logits", "Q8_0.json"}, "no half bundle is left"

    # what was measured is read: a mark in its row comes out again
    kept = json.loads((tmp_path / "Q8_0.json").read_text(encoding="utf-8"))
    kept["row"]["kl_99"] = 77.0
    (tmp_path / "Q8_0.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(material, "measure_divergence", measure)
    monkeypatch.setattr(material, "measure_perplexity", None)  # nor is the base scored again
    rows = compare(capsys, f16, text, tmp_path, "--types", "Q8_0,Q4_0")
    assert [row["name"] for row in rows] == ["F16", "Q8_0", "Q4_0"]
    assert rows[1]["kl_99"] == 77
    assert 0 < rows[2]["kl_99"] < 77


def interrupted(f16: Path, text: Path, out: Path) -> None:
    """The command without what turns an interrupt into an exit code, and shields from another."""
    from phi4mm.cli.main import build_parser

    flags = ("compare", f16, "-f", text, "-o", out, *FLAGS, "--types", "Q8_0,Q4_0")
    args = build_parser().parse_args([str(flag) for flag in flags])
    args.run(args)


def test_rows_of_another_measurement_are_refused(
    f16: Path, text: Path, tmp_path: Path, capsys: Any
) -> None:
    compare(capsys, f16, text, tmp_path, "--types", "Q8_0")
    other = tmp_path / "other.txt"
    other.write_text("Something else. " * 100, encoding="utf-8")
    types = ("--types", "Q8_0")
    for file, flags, what in (
        (other, (*FLAGS, *types), "another text"),
        (text, ("-c", 64, "--chunks", 1, *types), "another text"),
        (text, (*FLAGS, *types, "-ctk", "f32"), "another cache"),
    ):
        assert run("compare", f16, "-f", file, "-o", tmp_path, *flags) == 2
        assert f"measured with {what}: choose another folder" in capsys.readouterr().err
    (tmp_path / "Q8_0.json").write_text("[]", encoding="utf-8")
    assert run("compare", f16, "-f", text, "-o", tmp_path, *FLAGS, *types) == 2
    assert "no row of a table" in capsys.readouterr().err


def test_with_an_importance_matrix_types_are_measured_without_and_with_it(
    f16: Path, text: Path, imatrix: Path, tmp_path: Path, capsys: Any
) -> None:
    flags = ("--types", "Q8_0,Q3_K_M", "--imatrix", imatrix)
    rows = compare(capsys, f16, text, tmp_path, *flags)
    assert [(row["name"], row["has_imatrix"]) for row in rows] == [
        ("F16", False), ("Q8_0", False), ("Q3_K_M", False), ("Q3_K_M", True),
    ]  # fmt: skip
    assert rows[2]["kl"] != rows[3]["kl"]
    assert run("compare", f16, "-f", text, "-o", tmp_path, *FLAGS, *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| same top token | KL without / with |")
    gain = f"{rows[2]['kl'] / rows[3]['kl']:.2f}"
    assert lines[5].startswith("| Q3_K_M, imatrix | ")
    assert lines[5].endswith(f" | {gain} |")
    assert lines[4].endswith(" |  |")
    assert lines[7] == (
        "| relative error | token_embd | attn_qkv | attn_output | ffn_up | ffn_down |"
    )

    other = tmp_path / "other.gguf"
    found = read_imatrix(imatrix)
    sums = {name: replace(s, squares=s.squares + 1) for name, s in found.sums.items()}
    write_imatrix(ImportanceMatrix(sums, ("x",), 1, 1), other)
    flags = ("--types", "Q3_K_M", "--imatrix", other)
    assert run("compare", f16, "-f", text, "-o", tmp_path, *FLAGS, *flags) == 2
    assert "Q3_K_M-imatrix.json: measured with another imatrix" in capsys.readouterr().err


def test_bundles_can_be_kept_with_their_record(
    f16: Path, text: Path, tmp_path: Path, capsys: Any
) -> None:
    rows = compare(capsys, f16, text, tmp_path, "--types", "Q4_0", "--keep")
    kept = inspect_path(tmp_path / "Q4_0")
    assert set(kept.answers.values()) == {None}, "all parts are there"
    record = read_record(tmp_path / "Q4_0" / "measurements" / "kl_divergence.json")
    assert record.result["kl"]["value"] == rows[1]["kl"]
    assert run("card", tmp_path / "Q4_0") == 0
    assert "Divergence from the base" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--types", "Q4_0,Q9"), "type 'Q9' is not known"),
        (("--types", "Q4_0,q4_0"), "name each type once"),
        (("-c", "2"), "-c is 2, must be 4 to"),
    ],
)
def test_what_makes_no_sense_is_refused(
    f16: Path, text: Path, tmp_path: Path, capsys: Any, flags: tuple[str, ...], message: str
) -> None:
    assert run("compare", f16, "-f", text, "-o", tmp_path / "types", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "types").exists()


def test_a_quantised_source_is_refused_at_once(
    text: Path, f16: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run("quantize", f16, "Q8_0", "-o", tmp_path / "q8") == 0
    assert run("compare", tmp_path / "q8", "-f", text, "-o", tmp_path / "types", *FLAGS) == 2
    assert "is Q8_0 already" in capsys.readouterr().err
    assert not (tmp_path / "types").exists()


# ---- on the answers of conversations


PICTURE, CLIP = "i150x333.png", "a16000_8000.wav"

# A line of the manifest, and the prompt that it is.
TALKS: tuple[tuple[dict[str, str], str], ...] = (
    (
        {"prompt": "Who?", "answer": "Nobody.", "system": "Be brief.", "tools": '[{"name":"f"}]'},
        '<|system|>Be brief.<|tool|>[{"name":"f"}]<|/tool|><|end|><|user|>Who?<|end|>',
    ),
    (
        {"image": PICTURE, "prompt": "What is this?", "answer": "A ripple."},
        "<|user|><|image_1|>What is this?<|end|>",
    ),
    (
        {"audio": CLIP, "prompt": "What is said?", "answer": "Nothing at all."},
        "<|user|><|audio_1|>What is said?<|end|>",
    ),
    (
        {"image": PICTURE, "audio": CLIP, "answer": "functools[]"},
        "<|user|><|image_1|><|audio_1|><|end|>",
    ),
)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory, media_dir: Path) -> Path:
    """A manifest with a conversation for each adapter, and one with tools."""
    path = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    for name in (PICTURE, CLIP):
        (path.parent / name).symlink_to(media_dir / name)
    lines = "".join(f"{json.dumps(line)}\n" for line, _ in TALKS)
    path.write_text(lines, encoding="utf-8")
    return path


def test_the_answers_of_conversations_are_scored_as_requests_compute_them(
    f16: Path, talks: Path, tmp_path: Path, capsys: Any
) -> None:
    flags = ("--conversations", talks, "-o", tmp_path / "types", "-t", 1, "--json")
    capsys.readouterr()
    assert run("compare", f16, *flags, "--types", "Q8_0,Q4_0") == 0
    base, q8, q4 = json.loads(capsys.readouterr().out)["rows"]
    with Phi4MM(f16, n_threads=1) as model:
        losses = [
            loss
            for line, prompt in TALKS
            for loss in answer_losses(model, talks.parent, line, prompt)
        ]
    assert base["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    assert 0 < q8["kl"] < q4["kl"]


def answer_losses(model: Phi4MM, folder: Path, line: dict[str, str], prompt: str) -> list[float]:
    """Negative log-likelihoods of an answer and its end, through the Python interface."""
    ids = [*model.tokenizer.encode(line["answer"]), model.tokenizer.special_id("<|end|>")]
    images, audios = ([folder / line[kind]] if kind in line else [] for kind in ("image", "audio"))
    text = f"{prompt}<|assistant|>{line['answer']}<|end|>"
    logits = model.logits(text, images=images, audios=audios)[-len(ids) - 1 : -1].astype(float)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [-float(row[id_]) for row, id_ in zip(log_probs, ids, strict=True)]


def test_rows_of_other_conversations_are_refused(
    f16: Path, talks: Path, tmp_path: Path, capsys: Any
) -> None:
    flags = ("-o", tmp_path / "types", "-t", 1, "--types", "Q8_0")
    first = talks.read_text(encoding="utf-8").splitlines(keepends=True)[0]
    short, other = tmp_path / "short.jsonl", tmp_path / "other.jsonl"
    short.write_text(first, encoding="utf-8")
    other.write_text(first.replace("Nobody", "Someone"), encoding="utf-8")
    assert run("compare", f16, "--conversations", short, *flags) == 0
    kept = (tmp_path / "types" / "Q8_0.json").read_bytes()
    assert run("compare", f16, "--conversations", short, *flags) == 0
    assert (tmp_path / "types" / "Q8_0.json").read_bytes() == kept
    capsys.readouterr()
    assert run("compare", f16, "--conversations", other, *flags) == 2
    assert "measured with another conversations" in capsys.readouterr().err

    # a base that was cut off is noticed before a type is measured against it
    base = tmp_path / "types" / "base.logits"
    base.write_bytes(base.read_bytes()[:-2])
    (tmp_path / "types" / "Q8_0.json").unlink()
    assert run("compare", f16, "--conversations", short, *flags) == 2
    assert "base.logits: has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give a text (-f) or --conversations"),
        (("--conversations", "talks", "-f", "text"), "give a text (-f) or --conversations"),
        (("--conversations", "talks", "-c", 64), "-c has no meaning without a text"),
        (("--conversations", "talks", "--chunks", 1), "--chunks has no meaning without a text"),
        (("--conversations", "talks", "--parse-special"), "--parse-special has no meaning"),
        (("--conversations", "absent.jsonl"), "absent.jsonl: cannot be read"),
        (("--conversations", "empty"), "empty.jsonl: no conversation in it"),
        (("--conversations", "mute"), "mute.jsonl:1: has no answer, which is what is scored"),
    ],
)
def test_conversations_that_make_no_sense_are_refused(
    f16: Path,
    talks: Path,
    text: Path,
    tmp_path: Path,
    capsys: Any,
    flags: tuple[object, ...],
    message: str,
) -> None:
    empty, mute = tmp_path / "empty.jsonl", tmp_path / "mute.jsonl"
    empty.write_text("", encoding="utf-8")
    mute.write_text('{"prompt": "Who are you?"}\n', encoding="utf-8")
    files = {"talks": talks, "text": text, "empty": empty, "mute": mute}
    given = [files.get(flag, flag) if isinstance(flag, str) else flag for flag in flags]
    assert run("compare", f16, "-o", tmp_path / "types", *given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "types").exists()
