"""`phi4mm bench`: what limits follow from a model's sizes, and that everything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measured import run

from phi4mm.bench.decoder import Sizes
from phi4mm.bench.measure import Measure, Runs, timed
from phi4mm.bench.peak import Peak, Work
from phi4mm.bench.work import (
    crop_work,
    file_bytes,
    generation_work,
    kv_bytes,
    prefill_work,
    sound_work,
)
from phi4mm.cli.options import sample_bundle
from phi4mm.errors import InputError
from phi4mm.measurement.record import read_record
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.hparams import DecoderHParams

REAL = DecoderHParams(
    n_vocab=200064,
    n_embd=3072,
    n_layer=32,
    n_head=24,
    n_head_kv=8,
    n_ff=8192,
    n_rot=96,
    n_ctx_train=131072,
    n_ctx_orig=4096,
    rms_eps=1e-5,
    rope_freq_base=10000.0,
    rope_attn_factor=1.190238,
)


def test_a_position_of_the_real_model_takes_128_kib() -> None:
    assert kv_bytes(REAL, 1) == 128 * 1024
    assert kv_bytes(REAL, 1, "f32", "f32") == 256 * 1024
    assert kv_bytes(REAL, 1, "q8_0", "f16") == 64 * 1024 + 32 * 1024 // 32 * 34


def test_generation_reads_every_weight_for_every_token() -> None:
    with Bundle.open(sample_bundle()) as bundle:
        h = bundle.decoder.hparams
        work = generation_work(bundle.decoder, None, 3)
        weights = file_bytes(bundle.decoder.file)
        assert work.n_bytes == 3 * weights + kv_bytes(h, 0 + 1 + 2)
        with_adapter = generation_work(bundle.decoder, bundle.adapters["speech"], 3)
        assert with_adapter.n_bytes - work.n_bytes == 3 * file_bytes(bundle.adapters["speech"].file)
        assert with_adapter.flops > work.flops


def test_prefill_computes_every_matrix_for_every_token_and_the_output_once() -> None:
    with Bundle.open(sample_bundle()) as bundle:
        h = bundle.decoder.hparams
        one, many = (prefill_work(bundle.decoder, None, n, 512) for n in (1, 1024))
        per_layer = h.n_embd * (h.n_embd + 2 * h.n_embd_gqa) + h.n_embd**2 + 3 * h.n_embd * h.n_ff
        attention = 4 * h.n_embd * h.n_layer
        output = 2 * h.n_vocab * h.n_embd
        assert one.flops == 2 * h.n_layer * per_layer + output + attention
        positions = 1024 * 1025 / 2
        assert many.flops == 1024 * 2 * h.n_layer * per_layer + output + attention * positions
        # the second batch of 512 reads the layers again, not the embedding
        assert file_bytes(bundle.decoder.file) < many.n_bytes < 2 * one.n_bytes


def test_encoder_work_grows_with_what_is_encoded() -> None:
    with Bundle.open(sample_bundle()) as bundle:
        assert bundle.mmproj is not None
        assert bundle.vision is not None
        assert bundle.audio is not None
        crop = crop_work(bundle.vision, bundle.mmproj.file)
        layer = 4 * bundle.vision.n_embd**2 + 2 * bundle.vision.n_embd * bundle.vision.n_ff
        assert crop.flops > 2 * bundle.vision.n_layer * layer * bundle.vision.n_patches
        ten, twenty = (sound_work(bundle.audio, bundle.mmproj.file, s) for s in (10, 20))
        assert 2 < twenty.flops / ten.flops < 3
        assert ten.n_bytes + crop.n_bytes < file_bytes(bundle.mmproj.file)


def test_the_longer_of_reading_and_computing_bounds_each_step() -> None:
    peak = Peak(bytes_per_s=10, flops=100)
    assert peak.least_s(Work(flops=100, n_bytes=1)) == 1
    assert peak.least_s(Work(flops=1, n_bytes=100)) == 10
    assert peak.least_s(Work(flops=100, n_bytes=1), Work(flops=1, n_bytes=100)) == 11


def test_a_measure_is_a_median_with_its_spread_and_fraction() -> None:
    rate = Measure.of_seconds("pp", [1, 2, 4], 0.5, unit="tok/s", per=100)
    assert (rate.value, rate.low, rate.high) == (50, 25, 100)
    assert (rate.limit, rate.fraction) == (200, 0.25)
    crop = Measure.of_seconds("crop", [1, 2, 4], 0.5, unit="s/crop", per=2)
    assert (crop.value, crop.low, crop.high) == (1, 0.5, 2)
    assert (crop.limit, crop.fraction) == (0.25, 0.25)
    unknown = Measure.of_seconds("s", [3], None)
    assert (unknown.limit, unknown.fraction) == (None, None)


def test_the_warm_up_does_not_count() -> None:
    seen: list[int] = []
    told: list[None] = []
    assert len(timed(seen.append, Runs(2, lambda: told.append(None)))) == 2
    assert seen == [0, 1, 2]
    assert len(told) == 3


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="-r is 0"):
        Sizes(n_runs=0)


@pytest.mark.slow
def test_everything_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    flags = ("-p", 32, "-n", 4, "-r", 1, "-t", 1, "-o", path)
    assert run("bench", "-m", sample_bundle(), *flags) == 0
    with Bundle.open(sample_bundle()) as bundle:
        assert bundle.vision is not None
        side = bundle.vision.image_size
    text = capsys.readouterr().out
    assert "GB/s" in text
    last = json.loads(text.splitlines()[-1])
    measures = {measure["name"]: measure for measure in last["result"]["measures"]}
    assert list(measures) == [
        "pp32", "tg4", "pp32 vision", "tg4 vision", "pp32 speech", "tg4 speech",
        "vision encoder", "audio encoder (RTF)",
        "TTFT text", f"TTFT picture {side}x{side}", f"TTFT picture {3 * side}x{2 * side}",
        "TTFT second question",
        "TTFT 30 s of sound",
    ]  # fmt: skip
    assert not last["result"]["skipped"]
    for measure in measures.values():
        assert 0 < measure["low"] <= measure["value"] <= measure["high"]
        # the ratio alone: on a busy machine the limits come out far too low
        value, limit = measure["value"], measure["limit"]
        ratio = value / limit if measure["unit"] == "tok/s" else limit / value
        assert measure["fraction"] == pytest.approx(ratio)
    first, second = measures[f"TTFT picture {side}x{side}"], measures["TTFT second question"]
    assert second["value"] < first["value"] / 3, "the picture is neither encoded nor filled again"
    footprint = last["result"]["footprint"]
    assert footprint["mapped_bytes"] > 2_000_000
    assert footprint["load_s"] > 0
    if Path("/proc/self/status").exists():
        assert 20_000_000 < footprint["anonymous_bytes"] < 1_000_000_000
    assert read_record(path).result == last["result"]
