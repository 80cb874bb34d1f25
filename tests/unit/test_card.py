"""`phi4mm card`: what was measured is in it, what was not is named, strangers are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from measured import TEXT, run, sample_decoder, sample_name

from phi4mm.cli.options import sample_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the sample, with a perplexity measured."""
    folder = tmp_path / "bundle"
    shutil.copytree(sample_bundle(), folder, ignore=shutil.ignore_patterns("media"))
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    (folder / "measurements").mkdir()
    record = folder / "measurements" / "perplexity.json"
    flags = ("-c", 64, "--chunks", 2, "-t", 1, "-o", record)
    assert run("perplexity", folder, "-f", tmp_path / "text.txt", *flags) == 0
    return folder


def test_the_card_has_what_was_measured_and_names_the_rest(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((bundle / "measurements" / "perplexity.json").read_text(encoding="utf-8"))
    capsys.readouterr()
    assert run("card", bundle) == 0
    card = capsys.readouterr().out
    assert card.startswith(f"# {sample_name()}\n")
    value, error = (record["result"]["perplexity"][name] for name in ("value", "error"))
    assert f"| text.txt | {value:.4f} ± {error:.4f} | 62 | 64 |" in card
    for path in bundle.glob("*.gguf"):
        assert f"`{path.name}`" in card
    missing = card.partition("## Not measured")[2]
    assert "phi4mm bench" in missing
    assert "phi4mm eval" in missing
    assert "-f TEXT" not in missing, "the perplexity was measured"


def test_every_kind_of_record_has_its_section(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = json.loads((bundle / "measurements" / "perplexity.json").read_text(encoding="utf-8"))
    estimate = {"value": 0.25, "error": 0.125}
    results = {
        "kl_divergence": {
            "text": "base.bin", "kl": estimate, "kl_median": 0.0625, "kl_99": 2.0, "kl_max": 3.0,
            "same_top": estimate, "n_scored": 7, "n_ctx": 512,
        },
        "eval": {
            "task": "wer", "items": "clean", "wer": {"all": 0.0625}, "n_items": 9,
            "failed": {"x": "broken"},
        },
        "bench": {
            "measures": [{"name": "tg128", "value": 12.5, "unit": "tok/s", "fraction": 0.75}],
            "footprint": {"load_s": 1.5, "mapped_bytes": 3_000_000, "anonymous_bytes": None},
        },
        "plan": {
            "n_ctx": 4096, "type_k": "f16", "type_v": "q8_0",
            "items": [
                {"place": "mapped", "n_bytes": 1_000_000},
                {"place": "memory", "n_bytes": 2_000_000},
            ],
        },
        "verify": {
            "weights": {"n_used": 5, "n_dropped": {"why": 2}, "parts": [{"relative": 1e-3}]},
            "answers": [
                {"name": "text", "max_error": 1e-4, "cosine": 1.0, "n_agreed": 31, "n_greedy": 32}
            ],
            "missing": [],
        },
    }  # fmt: skip
    for kind, result in results.items():
        record = {**measured, "kind": kind, "result": result}
        (tmp_path / f"{kind}.json").write_text(json.dumps(record), encoding="utf-8")
    capsys.readouterr()
    assert run("card", bundle, "--records", tmp_path, "--records", bundle / "measurements") == 0
    card = capsys.readouterr().out
    for line in (
        "| base.bin | 0.250000 ± 0.125000 | 0.062500 | 2.000000 | 3.000000 | 25.00% | 7 | 512 |",
        "| clean | WER all | 6.25% | 9 | 1 |",
        "| tg128 | 12.5 | tok/s | 75% |",
        "| 4096 | f16/q8_0 | 1.00 MB | 2.00 MB | 3.00 MB |",
        "| text | 1.00e-04 | 1.0000000 | 31/32 |",
        "5 tensors of the checkpoint used, 2 left out",
    ):
        assert line in card
    assert "Not measured" not in card


def test_the_sample_s_abilities_have_a_row_for_each_use_of_the_adapter(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle / "measurements" / "perplexity.json"
    measured = json.loads(path.read_text(encoding="utf-8"))
    interval = {"value": 0.25, "low": 0.125, "high": 0.5}
    ability = {"title": "hears", "kind": "clips", "n_items": 9, "failed": {"x": "broken"}}
    abilities = [{**ability, "score": interval, "score_off": interval}]
    abilities.append({**ability, "title": "adds", "kind": "questions"})
    abilities[1] |= {"score": interval, "score_off": None}
    result = {"task": "sample", "items": "held-out", "abilities": abilities}
    record = {**measured, "kind": "eval", "result": result}
    (path.parent / "eval.json").write_text(json.dumps(record), encoding="utf-8")
    capsys.readouterr()
    assert run("card", bundle) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "| held-out |" in line]
    assert rows == [
        "| held-out | hears, WER | 25.00% (12.5% to 50.0%) | 9 | 1 |",
        "| held-out | hears, WER without adapter | 25.00% (12.5% to 50.0%) | 9 | 1 |",
        "| held-out | adds, right | 25.00% (12.5% to 50.0%) | 9 | 1 |",
    ]


def test_a_record_of_other_files_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = bundle / sample_decoder().name
    data = decoder.read_bytes()
    name = sample_name().encode()
    assert name in data
    decoder.write_bytes(data.replace(name, name[::-1]))
    assert run("card", bundle) == 2
    assert "is of other files" in capsys.readouterr().err


def test_what_is_no_record_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "measurements" / "notes.json").write_text("[]", encoding="utf-8")
    assert run("card", bundle) == 2
    assert "not a record" in capsys.readouterr().err


def test_the_card_is_written_to_a_file(bundle: Path) -> None:
    assert run("card", bundle, "-o", bundle / "README.md") == 0
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert card.startswith(f"# {sample_name()}\n")
