"""Perplexity and divergence against the same numbers computed from logits by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from measured import TEXT, run

from damaged_bundle import damaged
from parity.fixtures import BundleDir, OpenModel
from phi4mm.errors import InputError
from phi4mm.evals import log_probs
from phi4mm.evals.scoring import bos_id, cut_chunks
from phi4mm.evals.statistic import Estimate
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.metadata import Entry, Metadata
from phi4mm.prompt.tokenizer import Tokenizer

N_CTX = 64


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT + "\n", encoding="utf-8")
    return path


def exact_log_probs(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return (
        x
        - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - x.max(-1, keepdims=True)
    )


def by_hand(open_model: OpenModel, types: str, text: Path) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of the scored rows of two chunks, and the tokens that come."""
    model = open_model("tiny", types=types)
    ids = model.tokenizer.encode(text.read_text(encoding="utf-8").rstrip("\n"))
    rows, targets = [], []
    for start in (0, N_CTX):
        chunk = ids[start : start + N_CTX]
        prompt = model.tokenizer.decode(chunk)
        assert model.tokenizer.encode(prompt) == chunk
        rows.append(exact_log_probs(model.logits(prompt))[N_CTX // 2 : -1])
        targets += chunk[N_CTX // 2 + 1 :]
    return np.concatenate(rows), np.array(targets)


def measure(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    capsys.readouterr()
    assert run("perplexity", *args, "-t", 1, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_perplexity_is_that_of_the_logits(
    bundle_dir: BundleDir, open_model: OpenModel, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-f", text, "-c", N_CTX, "--chunks", 2, "-ctk", "f32", "-ctv", "f32")
    found = measure(capsys, bundle_dir("tiny"), *flags)
    rows, targets = by_hand(open_model, "f32", text)
    losses = -rows[np.arange(len(targets)), targets]
    assert found["n_scored"] == len(losses) == 2 * (N_CTX - 1 - N_CTX // 2)
    assert found["perplexity"]["value"] == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    error = losses.std() / np.sqrt(len(losses) - 1) * np.exp(losses.mean())
    assert found["perplexity"]["error"] == pytest.approx(error, rel=1e-4)


def test_divergence_is_that_of_the_logits(
    bundle_dir: BundleDir,
    open_model: OpenModel,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, small = bundle_dir("tiny"), tmp_path / "q8"
    assert run("quantize", bundle_dir("tiny"), "Q4_0", "-o", small) == 0
    logits = tmp_path / "base.bin"
    f32 = ("-ctk", "f32", "-ctv", "f32")
    flags = ("-f", text, "-c", N_CTX, "--chunks", 2, *f32)
    measure(capsys, base, *flags, "--save-logits", logits)

    same = measure(capsys, base, "--kl-divergence", "--base", logits, *f32)
    assert abs(same["kl"]["value"]) < 1e-5
    assert same["same_top"]["value"] == 1

    found = measure(capsys, small, "--kl-divergence", "--base", logits, *f32)
    base_rows, _ = by_hand(open_model, "f32", text)
    from phi4mm import Phi4MM

    with Phi4MM(small, n_threads=1, kv_type="f32") as model:
        small_rows, targets = by_hand(lambda *_, **__: model, "f32", text)
    kl = (np.exp(base_rows) * (base_rows - small_rows)).sum(-1)
    assert kl.mean() > 1e-3, "the control: there is a divergence to find"
    assert found["kl"]["value"] == pytest.approx(kl.mean(), rel=1e-2)
    assert found["kl_max"] == pytest.approx(kl.max(), rel=1e-2)
    assert found["kl_median"] == pytest.approx(np.median(kl), rel=1e-2)
    assert found["same_top"]["value"] == (small_rows.argmax(-1) == base_rows.argmax(-1)).mean()
    losses = [-rows[np.arange(len(targets)), targets].mean() for rows in (small_rows, base_rows)]
    assert found["log_ratio"]["value"] == pytest.approx(losses[0] - losses[1], abs=1e-4)


# llama-perplexity of llama.cpp 0c1e570 on the tiny model in F32 and its Q4_0, with
# -c 64 -b 64 -t 1 -ctk f32 -ctv f32 -fa off; the Q4_0 with --kl-divergence on the former's file.
STOCK = {
    "perplexity": (920.0118, 48.31812),
    "small": (859.417158, 44.846726),
    "log_ratio": (-0.068133, 0.021503),
    "kl": (0.129674, 0.002390),
    "kl_max": 0.454089,
    "kl_99": 0.378956,
    "kl_median": 0.118247,
    "rms_dp": 0.00208,
    "same_top": (0.42652, 0.02096),
}


def test_the_numbers_are_those_of_llama_perplexity(
    bundle_dir: BundleDir, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    f32, logits = ("-ctk", "f32", "-ctv", "f32"), tmp_path / "base.bin"
    flags = ("-f", text, "-c", 64, *f32, "--save-logits", logits)
    found = measure(capsys, bundle_dir("tiny"), *flags)["perplexity"]
    assert (found["value"], found["error"]) == pytest.approx(STOCK["perplexity"], rel=1e-5)

    small = tmp_path / "q4"
    assert run("quantize", bundle_dir("tiny"), "Q4_0", "-o", small) == 0
    found = measure(capsys, small, "--kl-divergence", "--base", logits, *f32)
    for name in ("log_ratio", "kl", "same_top"):
        both = (found[name]["value"], found[name]["error"])
        assert both == pytest.approx(STOCK[name], rel=1e-3), name
    for name in ("kl_max", "kl_99", "kl_median"):
        assert found[name] == pytest.approx(STOCK[name], rel=1e-3), name
    assert found["rms_dp"] == pytest.approx(STOCK["rms_dp"], rel=5e-3)
    both = (found["perplexity"]["value"], found["perplexity"]["error"])
    assert both == pytest.approx(STOCK["small"], rel=1e-4)


def test_the_base_file_is_laid_out_as_llama_perplexity_reads_it(
    bundle_dir: BundleDir, text: Path, tmp_path: Path
) -> None:
    path = tmp_path / "base.bin"
    flags = ("-c", N_CTX, "--chunks", 2, "-t", 1)
    assert run("perplexity", bundle_dir("tiny"), "-f", text, "--save-logits", path, *flags) == 0
    data = path.read_bytes()
    assert data[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunks = struct.unpack("<3i", data[8:20])
    assert (n_ctx, n_vocab, n_chunks) == (N_CTX, 512, 2)
    row = 20 + 4 * n_ctx * n_chunks
    assert len(data) == row + 2 * n_chunks * (n_ctx - 1 - n_ctx // 2) * (n_vocab + 4)
    scale, lowest = struct.unpack("<2f", data[row : row + 8])
    numbers = np.frombuffer(data, "<u2", n_vocab, row + 8)
    assert np.exp(scale * numbers + np.float64(lowest)).sum() == pytest.approx(1, abs=1e-3)


def test_log_probs_keep_16_nats_in_16_bits() -> None:
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((5, 301)) * 8).astype(np.float32)
    logits[0] = 3  # all alike
    exact = log_probs.log_softmax(logits)
    found = log_probs.decode(log_probs.encode(exact), 301)
    kept = exact > exact.max(1, keepdims=True) - 16
    assert not kept.all()
    assert np.abs(found - exact)[kept].max() < 16 / 65535
    lowest = np.broadcast_to(exact.max(1, keepdims=True) - 16, exact.shape)
    assert np.abs(found - lowest)[~kept].max() < 1e-4


def test_an_estimate_has_the_error_of_its_mean() -> None:
    values = np.array([1.0, 2.0, 4.0])
    found = Estimate.of(values)
    assert found.value == pytest.approx(7 / 3)
    assert found.error == pytest.approx(values.std() / np.sqrt(2))
    assert Estimate.of(values[:1]).error == 0
    share = Estimate.of_share(np.array([True, True, False, True]))
    assert (share.value, share.error) == (0.75, pytest.approx(0.25))


def test_a_file_may_ask_for_a_first_token() -> None:
    def metadata(**entries: Entry) -> Metadata:
        return Metadata("file", {f"tokenizer.ggml.{k}": v for k, v in entries.items()})

    bos = Entry("u32", False, 7)
    assert bos_id(metadata(bos_token_id=bos)) is None
    no = metadata(bos_token_id=bos, add_bos_token=Entry("bool", False, False))
    assert bos_id(no) is None
    yes = metadata(bos_token_id=bos, add_bos_token=Entry("bool", False, True))
    assert bos_id(yes) == 7


def test_special_tokens_stay_text(bundle_dir: BundleDir, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("<|end|>" * 20, encoding="utf-8")
    with Bundle.open(bundle_dir("tiny")) as bundle:
        chunks = cut_chunks(bundle.decoder, path, 16, None)
        end = Tokenizer(bundle.decoder.file.metadata).special_id("<|end|>")
    assert end not in chunks
    assert chunks.size > 20


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no text"),
        (("-f", "TEXT", "-c", 100_000), "-c is 100000, must be 4 to"),
        (("-f", "TEXT", "--chunks", 0), "--chunks is 0"),
        (("-f", "SHORT"), "a chunk takes 512"),
        (("-f", "MISSING"), "cannot be read"),
        (("-f", "TEXT", "--base", "X"), "no meaning without --kl-divergence"),
        (("--kl-divergence",), "needs --base"),
        (("--kl-divergence", "--base", "TEXT"), "no file of log-probabilities"),
        (("--kl-divergence", "--base", "X", "-c", 64), "-c has no meaning"),
        (("--kl-divergence", "--base", "CUT"), "it is not whole"),
    ],
)
def test_what_cannot_be_done_is_refused(
    bundle_dir: BundleDir,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[object, ...],
    message: str,
) -> None:
    short, cut = tmp_path / "short.txt", tmp_path / "cut.bin"
    short.write_text("few words", encoding="utf-8")
    cut.write_bytes(b"_logits_" + struct.pack("<3i", 64, 512, 2) + bytes(100))
    places = {"TEXT": text, "SHORT": short, "CUT": cut, "MISSING": tmp_path / "none"}
    assert run("perplexity", bundle_dir("tiny"), *(places.get(str(a), a) for a in args)) == 2
    assert message in capsys.readouterr().err


def test_a_base_of_another_vocabulary_is_refused(
    bundle_dir: BundleDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "base.bin"
    with path.open("wb") as stream:
        header = log_probs.LogProbsHeader(np.zeros((1, 8), np.int32), 7)
        log_probs.write_header(stream, header)
        stream.write(bytes(2 * 3 * log_probs.row_size(header.n_vocab)))
    assert run("perplexity", bundle_dir("tiny"), "--kl-divergence", "--base", path) == 2
    assert "7 tokens" in capsys.readouterr().err


def test_a_failed_run_leaves_no_base(bundle_dir: BundleDir, text: Path, tmp_path: Path) -> None:
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.evals.perplexity import measure_perplexity

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with Bundle.open(bundle_dir("tiny")) as bundle, pytest.raises(KeyboardInterrupt):
        measure_perplexity(
            bundle.decoder,
            text,
            EngineParams(n_threads=1),
            n_ctx=N_CTX,
            save_to=tmp_path / "base.bin",
            progress=stop,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_computes_nan_is_refused(
    bundle_dir: BundleDir, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its perplexity would be NaN, and nobody would be told why."""
    folder = damaged(bundle_dir("tiny"), tmp_path / "damaged", "output_norm.weight")
    base = tmp_path / "base.bin"
    flags = ("-f", text, "-c", N_CTX, "-t", 1)
    assert run("perplexity", folder, *flags, "--save-logits", base) == 2
    assert "F32.gguf: computes NaN or infinite logits" in capsys.readouterr().err
    assert not base.exists()
    assert run("perplexity", bundle_dir("tiny"), *flags, "--save-logits", base) == 0
    assert run("perplexity", folder, "--kl-divergence", "--base", base, "-t", 1) == 2
    assert "computes NaN or infinite logits" in capsys.readouterr().err
    assert run("imatrix", folder, *flags, "-o", tmp_path / "i.gguf") == 2
    assert "computes NaN or infinity as inputs of " in capsys.readouterr().err
    assert not (tmp_path / "i.gguf").exists()


def test_records_are_read_back(bundle_dir: BundleDir, text: Path, tmp_path: Path) -> None:
    from phi4mm.measurement.record import read_record

    path = tmp_path / "record.json"
    assert run("perplexity", bundle_dir("tiny"), "-f", text, "-c", N_CTX, "-o", path, "-t", 1) == 0
    record = read_record(path)
    assert record.kind == "perplexity"
    assert record.machine.n_threads == 1
    assert record.files[0].name.endswith(".gguf")
    assert record.result["perplexity"]["value"] > 1
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="not a record"):
        read_record(path)
