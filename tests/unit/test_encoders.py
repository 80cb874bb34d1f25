"""The encoders against float64 numpy, block by block and as a whole, with tiny random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import encoder_reference as reference
import gguf
import gguf_builder
import numpy as np
import pytest
from gguf_builder import AUDIO, VISION
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from phi4mm.encoders import conformer, siglip
from phi4mm.encoders.conformer import AudioEncoder
from phi4mm.encoders.layers import Block, gelu_tanh
from phi4mm.encoders.siglip import VisionEncoder
from phi4mm.encoders.steps import finish
from phi4mm.encoders.tap import Taps
from phi4mm.errors import Cancelled
from phi4mm.media.crops import CropPlan, plan_crops
from phi4mm.media.params import ImageParams
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import AudioHParams, VisionHParams
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import TensorSpec, audio_block, mmproj_tensors, vision_block
from phi4mm.native.abort import AbortFlag
from phi4mm.native.ggml import Backend, WeightData, Weights
from phi4mm.native.graph import Graph
from phi4mm.native.library import load

Array = NDArray[np.float32]
Tensors = dict[str, Array]

TOLERANCE = 1e-5
VISIBLE = 1e-3  # a deliberate mistake must show by at least this much

# Chunks of 6 tokens and a table of distances up to 4: both ends are met by short clips.
SHORT = replace(AUDIO, n_layer=2, chunk_size=6, bias_distance=4)


def weights_of(table: dict[str, TensorSpec], seed: int = 5) -> Tensors:
    """Random tensors whose products stay near 1."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, spec in table.items():
        n_in = np.prod(spec.shape[1:]) if len(spec.shape) > 1 else 16
        values = rng.standard_normal(spec.shape) * 1.5 / np.sqrt(n_in)
        is_norm = len(spec.shape) == 1 and name.endswith("weight")
        tensors[name] = (1 + values if is_norm else values).astype(np.float32)
    tensors["a.rel_attn_bias.weight"] *= 2
    return tensors


@dataclass(frozen=True)
class Model:
    """Weights, and the file that holds them."""

    tensors: Tensors
    file: GGUFFile
    vision: VisionHParams
    audio: AudioHParams


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(load(), n_threads=1) as backend:
        yield backend


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return write(tmp_path_factory.mktemp("model"), weights_of(mmproj_tensors(VISION, SHORT)))


def write(folder: Path, tensors: Tensors) -> Model:
    path = folder / "mmproj.gguf"
    stored = {n: gguf_builder.Tensor(n, t.shape, 0, t.tobytes()) for n, t in tensors.items()}
    path.write_bytes(gguf_builder.mmproj_bytes(vision=VISION, audio=SHORT, tensors=stored))
    return Model(tensors, GGUFFile.open(path), VISION, SHORT)


@pytest.fixture(scope="module")
def vision_encoder(model: Model, backend: Backend) -> Iterator[VisionEncoder]:
    encoder = VisionEncoder(model.file, model.vision, backend)
    yield encoder
    encoder.close()


@pytest.fixture(scope="module")
def audio_encoder(model: Model, backend: Backend) -> Iterator[AudioEncoder]:
    encoder = AudioEncoder(model.file, model.audio, backend)
    yield encoder
    encoder.close()


def random(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(found: Array, expected: NDArray[np.floating]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def plan(width: int, height: int) -> CropPlan:
    h = VISION
    params = ImageParams(h.image_size, h.patch_size, h.max_crops, h.image_mean, h.image_std)
    return plan_crops(width, height, params)


# ---- GELU


def test_gelu_tanh_is_exact_and_is_not_the_other_gelu(backend: Backend) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4001), [-1e4, -90, 0, 90, 1e4]]).astype(np.float32)
    with Graph(backend) as g:
        g.output("y", gelu_tanh(g, g.input("x", x.shape)), 1)
        found = g.compute({"x": x})["y"]
    expected = reference.gelu_tanh(x.astype(np.float64))
    assert np.abs(found - expected).max() <= 1e-6 * max(1, np.abs(x).max())
    near = np.abs(x) < 4
    assert error(found[near], reference.gelu_tanh(x[near].astype(np.float64))) < 1e-6
    assert error(found[near], reference.gelu_erf(x[near].astype(np.float64))) > 1e-4


# ---- vision: pieces


@given(st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=64)
def test_patches_are_the_valid_ones_and_their_neighbours_in_a_pooling_cell(
    valid_rows: int, valid_cols: int
) -> None:
    order = siglip.order_patches(valid_rows, valid_cols, 2)
    cells = list(zip(order.rows.tolist(), order.cols.tolist(), strict=True))
    valid = {(r, c) for r in range(valid_rows) for c in range(valid_cols)}
    needed = {(r // 2 * 2 + i, c // 2 * 2 + j) for r, c in valid for i in (0, 1) for j in (0, 1)}
    assert set(cells[: order.n_valid]) == valid
    assert set(cells) == needed
    assert len(cells) == len(needed) == order.height * order.width


@given(st.integers(1, 32), st.integers(1, 32))
@settings(max_examples=64)
def test_positions_are_stretched_over_the_valid_patches(valid_rows: int, valid_cols: int) -> None:
    order = siglip.order_patches(valid_rows, valid_cols, 2)
    ids = siglip.position_ids(order, valid_rows, valid_cols, 32)
    for i, (r, c) in enumerate(zip(order.rows.tolist(), order.cols.tolist(), strict=True)):
        # The reference's own formula: fractional coordinates put into 32 buckets.
        rows, cols = np.arange(0, 1 - 1e-6, 1 / valid_rows), np.arange(0, 1 - 1e-6, 1 / valid_cols)
        edges = np.arange(1, 32) / 32
        valid = i < order.n_valid
        row = np.searchsorted(edges, rows[r] + 1e-9, side="right") if valid else 0
        col = np.searchsorted(edges, cols[c] + 1e-9, side="right") if valid else 0
        assert ids[i] == row * 32 + col


@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (3, 4), (1, 3)])
def test_vision_layer_with_masked_patches(
    model: Model, backend: Backend, rows: int, cols: int
) -> None:
    """The graph leaves masked patches out; the reference masks them."""
    h, x = VISION, random(4, 4, VISION.n_embd)
    order = siglip.order_patches(rows, cols, 2)
    found = run_block(
        model,
        backend,
        lambda block, x: siglip.layer(block, x, h.n_head, order.n_valid),
        x[order.rows, order.cols],
        partial(vision_block, 1),
        h.eps,
    )
    mask = np.zeros((4, 4), np.bool_)
    mask[:rows, :cols] = True
    whole = reference.vision_layer(
        model.tensors, "v.blk.1", x.reshape(16, -1), mask.ravel(), h.n_head, h.eps
    ).reshape(4, 4, -1)
    assert error(found, whole[order.rows, order.cols]) <= TOLERANCE
    unmasked = reference.vision_layer(
        model.tensors, "v.blk.1", x.reshape(16, -1), np.ones(16, np.bool_), h.n_head, h.eps
    ).reshape(4, 4, -1)
    if not mask.all():
        assert error(found, unmasked[order.rows, order.cols]) > VISIBLE


def run_block(model, backend, build, x, name, eps, **others: Array) -> Array:
    """A function of one block, on the weights of a model."""
    tensors = {n: WeightData.of_array(t) for n, t in model.tensors.items()}
    with Weights(backend, tensors) as weights, Graph(backend, max_tensors=256) as g:
        inputs = [g.input(n, array.shape) for n, array in {"x": x, **others}.items()]
        g.output("y", build(Block(g, weights, name, eps), *inputs))
        return g.compute({"x": x, **others})["y"]


# ---- vision: the whole

# (width, height): one crop; one masked column; odd valid rows and columns; two rows of crops.
PICTURES = [(56, 56), (52, 50), (30, 41), (100, 30), (100, 100), (150, 70), (20, 56)]


@pytest.mark.parametrize("size", PICTURES)
def test_picture_matches_the_reference(
    model: Model, vision_encoder: VisionEncoder, size: tuple[int, int]
) -> None:
    layout = plan(*size)
    crops = random(1 + layout.n_crops, 3, 56, 56)
    found = vision_encoder.encode(crops, layout)
    assert len(found) == layout.n_tokens
    assert error(found, reference.vision(model.tensors, crops, layout, VISION)) <= TOLERANCE


def test_some_of_the_pictures_have_masked_patches_and_some_an_odd_number_of_valid_ones() -> None:
    layouts = [plan(*size) for size in PICTURES]
    assert any(valid != (4, 4) for layout in layouts for valid in layout.crop_valid)
    assert any(n % 2 for layout in layouts for valid in layout.crop_valid for n in valid)
    assert any(layout.rows > 1 and layout.cols > 1 for layout in layouts)


MISTAKES = {
    "GELU of the wrong kind in the projector": {"gelu": reference.gelu_tanh},
    "separators of zero": {"v.image_newline": 0.0, "v.view_seperator": 0.0},
    "separators of each other": {"v.image_newline": 1.0, "v.view_seperator": -1.0},
    "no position embedding": {"v.position_embd.weight": 0.0},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_visible_in_a_picture(
    monkeypatch: pytest.MonkeyPatch, model: Model, vision_encoder: VisionEncoder, name: str
) -> None:
    layout = plan(100, 100)
    crops = random(1 + layout.n_crops, 3, 56, 56)
    changes = dict(MISTAKES[name])
    if gelu := changes.pop("gelu", None):
        monkeypatch.setattr(reference, "projector", partial(reference.projector, gelu=gelu))
    wrong = model.tensors | {n: np.full_like(model.tensors[n], v) for n, v in changes.items()}
    found = vision_encoder.encode(crops, layout)
    # The two kinds of GELU differ by 5e-4 at most, before the second layer.
    visible = VISIBLE if changes else 1e-4
    assert error(found, reference.vision(wrong, crops, layout, VISION)) > visible


def test_a_crop_without_valid_patches_gives_no_tokens(vision_encoder: VisionEncoder) -> None:
    crop = random(3, 56, 56)
    assert vision_encoder._encode_crop(crop, 4, 0, Taps()).pooled.shape == (2, 0, VISION.n_embd)
    assert vision_encoder._encode_crop(crop, 0, 4, Taps()).pooled.shape == (0, 2, VISION.n_embd)


def computed_crops(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the patches that are computed from now on, crop by crop."""
    shapes: list[tuple[int, ...]] = []
    compute = VisionEncoder._compute
    monkeypatch.setattr(
        VisionEncoder,
        "_compute",
        lambda self, patches, *rest: shapes.append(patches.shape) or compute(self, patches, *rest),
    )
    return shapes


def test_equal_crops_are_encoded_once_and_give_what_two_give(
    monkeypatch: pytest.MonkeyPatch, model: Model, vision_encoder: VisionEncoder
) -> None:
    layout, crop = plan(56, 56), random(3, 56, 56)
    crops = np.stack([crop, crop])
    alone = [vision_encoder._encode_crop(crop, *v, Taps()).pooled for v in layout.crop_valid]
    file = model.file
    newline, separator = (file.data(n) for n in ("v.image_newline", "v.view_seperator"))
    both = vision_encoder._projector.project(siglip.arrange(alone, layout, newline, separator))
    shapes = computed_crops(monkeypatch)
    taps = Taps(["vis.layer1"])
    once = vision_encoder.encode(crops, layout, taps=taps)
    assert len(shapes) == 1
    assert np.array_equal(once, both)
    assert len(taps.pieces("vis.layer1")) == 2
    assert error(once, reference.vision(model.tensors, crops, layout, VISION)) <= TOLERANCE


def test_crops_that_differ_in_a_bit_or_in_their_mask_are_not_shared(
    monkeypatch: pytest.MonkeyPatch, vision_encoder: VisionEncoder
) -> None:
    crop = random(3, 56, 56)
    other = crop.copy()
    other[2, 55, 55] = np.nextafter(other[2, 55, 55], np.float32(9))
    shapes = computed_crops(monkeypatch)
    vision_encoder.encode(np.stack([crop, other]), plan(56, 56))
    assert len(shapes) == 2
    vision_encoder.encode(np.stack([crop, crop]), plan(20, 56))
    assert len(shapes) == 4


def test_picture_taps(model: Model, vision_encoder: VisionEncoder) -> None:
    layout = plan(30, 41)
    crops = random(1 + layout.n_crops, 3, 56, 56)
    taps = Taps(["vis.layer1", "vis.hd_tokens", "vis.projected"])
    found = vision_encoder.encode(crops, layout, taps=taps)
    assert error(found, taps.pieces("vis.projected")[0]) == 0
    for crop, valid, layer in zip(crops, layout.crop_valid, taps.pieces("vis.layer1"), strict=True):
        expected = reference.vision_crop(model.tensors, crop, *valid, VISION)
        order = siglip.order_patches(*valid, 2)
        layer = layer.reshape(4, 4, -1)
        assert error(layer[order.rows, order.cols], expected[order.rows, order.cols]) <= TOLERANCE
        assert np.isnan(layer).any(-1).sum() == 16 - len(order.rows)
    with pytest.raises(KeyError):
        taps.pieces("vis.layer0")


# ---- audio: pieces


@pytest.mark.parametrize("n", [1, 3, 4, 5, 12])
def test_relative_bias_is_clipped_at_both_ends(n: int) -> None:
    table = random(8, 3)
    found = conformer.relative_bias(table, n)
    assert error(found, reference.relative_bias(table, n)) == 0
    if n > 1:
        assert error(found, reference.relative_bias(np.roll(table, 1, axis=0), n)) > VISIBLE


@pytest.mark.parametrize("n_frames", [1, 2, 7, 8, 9, 255, 256, 257, 264, 265, 523, 777])
def test_subsampling_in_slices_equals_all_at_once(
    model: Model, audio_encoder: AudioEncoder, n_frames: int
) -> None:
    mel = random(n_frames, 80)
    found = finish(audio_encoder._subsample(mel))
    assert error(found, reference.subsample(model.tensors, mel)) <= TOLERANCE


def test_slices_without_an_early_token_would_be_visible(
    model: Model, audio_encoder: AudioEncoder
) -> None:
    mel = random(512, 80)
    cut = [reference.subsample(model.tensors, part) for part in (mel[:256], mel[256:])]
    assert error(finish(audio_encoder._subsample(mel)), np.concatenate(cut)) > VISIBLE


FEED_FORWARDS = {
    "": ("ffn_norm", "ffn_up", "ffn_down"),
    "_1": ("ffn_norm_1", "ffn_up_1", "ffn_down_1"),
}


@pytest.mark.parametrize("suffix", FEED_FORWARDS)
def test_feed_forward(model: Model, backend: Backend, suffix: str) -> None:
    x = random(5, AUDIO.n_embd)
    found = run_audio(
        model, backend, lambda b, x: conformer.feed_forward(b, x, FEED_FORWARDS[suffix]), x
    )
    expected = reference.feed_forward(model.tensors, "a.blk.1", x, suffix, SHORT.eps)
    assert error(found, expected) <= TOLERANCE
    up = f"a.blk.1.ffn_up{suffix}.weight"
    swapped = model.tensors | {up: np.roll(model.tensors[up], AUDIO.n_ff, axis=0)}
    gate_first = reference.feed_forward(swapped, "a.blk.1", x, suffix, SHORT.eps)
    assert error(found, gate_first) > VISIBLE


@pytest.mark.parametrize("n", [1, 6, 11])
def test_rel_attention(model: Model, backend: Backend, n: int) -> None:
    x, table = random(n, AUDIO.n_embd), model.tensors["a.rel_attn_bias.weight"]
    bias = conformer.relative_bias(table, n)
    found = run_audio(model, backend, conformer.rel_attention, x, bias=bias)
    expected = reference.rel_attention(model.tensors, "a.blk.1", x, bias, SHORT.eps)
    assert error(found, expected) <= TOLERANCE
    backwards = bias.swapaxes(1, 2)
    wrong = reference.rel_attention(model.tensors, "a.blk.1", x, backwards, SHORT.eps)
    assert n == 1 or error(found, wrong) > VISIBLE


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_conv_module_looks_back_only(model: Model, backend: Backend, n: int) -> None:
    x = random(n, AUDIO.n_embd)
    found = run_audio(model, backend, conformer.conv_module, x)
    expected = reference.conv_module(model.tensors, "a.blk.1", x, SHORT.eps)
    assert error(found, expected) <= TOLERANCE
    ahead = reference.conv_module(model.tensors, "a.blk.1", x[::-1], SHORT.eps)[::-1]
    assert n == 1 or error(found, ahead) > VISIBLE


def run_audio(model: Model, backend: Backend, build, x: Array, **others: Array) -> Array:
    return run_block(model, backend, build, x, partial(audio_block, 1), SHORT.eps, **others)


# ---- audio: the whole

# 1, 5, 6 tokens (one chunk), 7 (a second one of one token and zeros), 12, 13, 70 (three slices).
CLIPS = [3, 40, 48, 51, 96, 97, 560]


@pytest.mark.parametrize("n_frames", CLIPS)
@pytest.mark.parametrize("projection", ["speech", "vision"])
def test_clip_matches_the_reference(
    model: Model, audio_encoder: AudioEncoder, n_frames: int, projection: str
) -> None:
    mel = random(n_frames, 80)
    found = audio_encoder.encode(mel, projection)
    assert len(found) == -(-n_frames // 8)
    assert error(found, reference.audio(model.tensors, mel, projection, SHORT)) <= TOLERANCE
    other = {"speech": "vision", "vision": "speech"}[projection]
    assert error(found, reference.audio(model.tensors, mel, other, SHORT)) > VISIBLE


def test_chunks_know_nothing_of_each_other(model: Model, audio_encoder: AudioEncoder) -> None:
    mel = random(100, 80)
    found = audio_encoder.encode(mel, "speech")
    one_chunk = reference.audio(model.tensors, mel, "speech", replace(SHORT, chunk_size=100))
    assert error(found, one_chunk) > VISIBLE


def test_clip_taps(model: Model, audio_encoder: AudioEncoder) -> None:
    parts = ["feed_forward_in", "self_attn", "conv", "feed_forward_out"]
    names = ["aud.normed", "aud.subsampled", "aud.block1", *(f"aud.block0.{p}" for p in parts)]
    taps, mel = Taps(names), random(60, 80)
    found = audio_encoder.encode(mel, "speech", taps=taps)
    normed = (mel - model.tensors["a.mel_mean"]) * model.tensors["a.mel_inv_std"]
    assert error(taps.pieces("aud.normed")[0], normed) < 1e-6
    x = taps.pieces("aud.subsampled")[0]
    assert error(x, reference.subsample(model.tensors, normed)) <= TOLERANCE
    first = taps.pieces("aud.block0.feed_forward_in")
    assert [piece.shape for piece in first] == [(6, 16), (6, 16)]
    expected = reference.feed_forward(model.tensors, "a.blk.0", x[:6], "", SHORT.eps)
    assert error(first[0], expected) <= TOLERANCE
    last = np.concatenate(taps.pieces("aud.block1"))[:8]
    assert error(found, reference.projector(model.tensors, "mm.a.speech", last)) <= TOLERANCE
    assert error(found, audio_encoder.encode(mel, "speech")) == 0


# ---- files of other types


@pytest.mark.parametrize(
    ("type_", "tolerance"), [(GGMLType.F16, 1e-2), (GGMLType.BF16, 6e-2), (GGMLType.Q8_0, 6e-2)]
)
def test_rows_padded_in_the_file(
    tmp_path: Path, backend: Backend, model: Model, type_: GGMLType, tolerance: float
) -> None:
    """No width of this model is a multiple of 32, so every Q8_0 matrix is padded."""
    table = mmproj_tensors(VISION, SHORT)
    stored, rounded = {}, {}
    for name, array in model.tensors.items():
        if table[name].kind == "f32":
            stored[name] = gguf_builder.Tensor(name, array.shape, 0, array.tobytes())
            continue
        n_in = array.shape[1]
        padded = np.pad(array, ((0, 0), (0, type_.padded(n_in) - n_in)))
        kind = gguf.GGMLQuantizationType(int(type_))
        data = gguf.quants.quantize(padded, kind)
        stored[name] = gguf_builder.Tensor(name, padded.shape, int(type_), data.tobytes())
        rounded[name] = gguf.quants.dequantize(data, kind).reshape(padded.shape)[:, :n_in]
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(gguf_builder.mmproj_bytes(vision=VISION, audio=SHORT, tensors=stored))
    file, tensors = GGUFFile.open(path), model.tensors | rounded
    layout, mel = plan(100, 100), random(60, 80)
    crops = random(1 + layout.n_crops, 3, 56, 56)
    vision, audio = VisionEncoder(file, VISION, backend), AudioEncoder(file, SHORT, backend)
    file.close()  # the mapping stays
    try:
        # The activations are rounded too, by ggml: hence the tolerance.
        pixels = reference.vision(tensors, crops, layout, VISION)
        assert error(vision.encode(crops, layout), pixels) < tolerance * np.abs(pixels).max()
        sound = reference.audio(tensors, mel, "speech", SHORT)
        assert error(audio.encode(mel, "speech"), sound) < tolerance * np.abs(sound).max()
    finally:
        vision.close()
        audio.close()


# ---- progress and cancelling


def test_between_is_called_after_each_piece(
    vision_encoder: VisionEncoder, audio_encoder: AudioEncoder
) -> None:
    calls: list[int] = []
    layout = plan(100, 100)
    vision_encoder.encode(
        random(1 + layout.n_crops, 3, 56, 56), layout, between=lambda: calls.append(1)
    )
    assert len(calls) == 1 + layout.n_crops == 5
    calls.clear()
    audio_encoder.encode(random(8 * 40, 80), "speech", between=lambda: calls.append(1))
    assert len(calls) == 2 + 7  # slices of 32 tokens, chunks of 6


def test_an_exception_from_between_ends_the_encoding(audio_encoder: AudioEncoder) -> None:
    def stop() -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        audio_encoder.encode(random(100, 80), "speech", between=stop)


def test_a_set_abort_flag_ends_the_encoding(model: Model) -> None:
    flag = AbortFlag(load())
    with Backend(load(), n_threads=1, abort=flag) as backend:
        encoder = AudioEncoder(model.file, SHORT, backend)
        mel = random(100, 80)
        with pytest.raises(Cancelled):
            encoder.encode(mel, "speech", between=flag.set)
        flag.clear()
        assert len(encoder.encode(mel, "speech")) == 13
        encoder.close()
        encoder.close()
