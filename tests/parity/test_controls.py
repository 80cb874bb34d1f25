"""Deliberate mistakes: the comparison with the reference notices every one of them.

Without this, agreement could mean that a part has no influence, or that nothing is compared.  Most
mistakes are made in the files of a bundle; the rest replace one function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parity.answer import logits_of
from parity.fixtures import N_THREADS, BundleDir
from parity.goldens import MAX_LOGIT_ERROR, cases
from parity.spoiled import SpoiledBundle
from phi4mm import Phi4MM
from phi4mm.encoders import conformer, siglip
from phi4mm.encoders.layers import gelu_tanh, split_heads
from phi4mm.engine.context_plan import ContextPlan
from phi4mm.modality import MODES, Mode
from phi4mm.native.graph import Graph

TEXT, LONG_TEXT = "text_base", "text_1100"
PICTURE, ODD_PICTURE, CLIP, LONG_CLIP = "i448x448", "i150x333", "a48077_16000", "a688055_16000"
BOTH = "image_audio_text"

ROPE = "phi3.rope.scaling"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


@pytest.fixture(scope="module")
def error_of(media_dir: Path) -> Callable[[Path, str], float]:
    """Gives the largest logit error of a bundle on a case."""

    def measure(folder: Path, case: str) -> float:
        golden = cases("tiny")[case]
        with Phi4MM(folder, n_threads=N_THREADS, kv_type="f32") as model:
            return golden.logit_error(logits_of(model, golden, media_dir))

    return measure


@pytest.fixture
def bundle(bundle_dir: BundleDir, tmp_path: Path) -> SpoiledBundle:
    return SpoiledBundle(bundle_dir("tiny"), tmp_path)


# ---- changes of a tensor


def zero(x: np.ndarray) -> np.ndarray:
    return np.zeros_like(x)


def swap_halves(x: np.ndarray) -> np.ndarray:
    return np.roll(x, len(x) // 2, axis=0)


def zero_second_half(x: np.ndarray) -> np.ndarray:
    x[len(x) // 2 :] = 0
    return x


def shift_rows(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=0)


def reverse_last(x: np.ndarray) -> np.ndarray:
    return x[..., ::-1]


def raise_one(x: np.ndarray) -> np.ndarray:
    x.flat[0] += 0.01
    return x


def stretch_one(x: np.ndarray) -> np.ndarray:
    x[5] *= 1.01
    return x


# (what is wrong, the case that must notice, how the file is changed)
FILE_MISTAKES: list[tuple[str, str, Callable[[SpoiledBundle], None]]] = [
    # decoder
    (
        "one weight of the first layer + 0.01",
        TEXT,
        lambda b: b.tensor("decoder", "blk.0.attn_qkv.weight", raise_one),
    ),
    (
        "epsilon of RMSNorm 1e-6 for 1e-5",
        TEXT,
        lambda b: b.number("decoder", "phi3.attention.layer_norm_rms_epsilon", lambda x: x / 10),
    ),
    (
        "gate and up swapped",
        TEXT,
        lambda b: b.tensor("decoder", "blk.0.ffn_up.weight", swap_halves),
    ),
    (
        "short and long factors swapped",
        TEXT,
        lambda b: b.swap("decoder", LONG_FACTORS, SHORT_FACTORS),
    ),
    (
        "one long factor 1 % off",
        LONG_TEXT,
        lambda b: b.tensor("decoder", LONG_FACTORS, stretch_one),
    ),
    (
        "attention factor 1 % off",
        TEXT,
        lambda b: b.number("decoder", f"{ROPE}.attn_factor", lambda x: 1.01 * x),
    ),
    (
        "original context halved",
        "text_1024",
        lambda b: b.number("decoder", f"{ROPE}.original_context_length", lambda n: n // 2),
    ),
    (
        "base of the frequencies 1 % off",
        TEXT,
        lambda b: b.number("decoder", "phi3.rope.freq_base", lambda x: 1.01 * x),
    ),
    # adapters
    (
        "alpha of the vision adapter + 1",
        "text_vision",
        lambda b: b.number("vision", "adapter.lora.alpha", lambda x: x + 1),
    ),
    (
        "alpha of the speech adapter + 1",
        "text_speech",
        lambda b: b.number("speech", "adapter.lora.alpha", lambda x: x + 1),
    ),
    # pictures
    ("view separator zero", PICTURE, lambda b: b.tensor("mmproj", "v.view_seperator", zero)),
    ("image newline zero", PICTURE, lambda b: b.tensor("mmproj", "v.image_newline", zero)),
    (
        "position table off by one",
        PICTURE,
        lambda b: b.tensor("mmproj", "v.position_embd.weight", shift_rows),
    ),
    (
        "mean of the pixels 1 % off",
        PICTURE,
        lambda b: b.number("mmproj", "clip.vision.image_mean", lambda x: 1.01 * x),
    ),
    # clips
    ("mean of the mel bins zero", CLIP, lambda b: b.tensor("mmproj", "a.mel_mean", zero)),
    (
        "pre-emphasis 0.96 for 0.97",
        CLIP,
        lambda b: b.number("mmproj", "phi4mm.mel.preemphasis", lambda x: x - 0.01),
    ),
    (
        "mel bins up to 8000 Hz",
        CLIP,
        lambda b: b.number("mmproj", "phi4mm.mel.max_hz", lambda hz: 8000.0),
    ),
    (
        "relative bias off by one",
        CLIP,
        lambda b: b.tensor("mmproj", "a.rel_attn_bias.weight", shift_rows),
    ),
    (
        "value and gate of a feed-forward swapped",
        CLIP,
        lambda b: b.tensor("mmproj", "a.blk.0.ffn_up.weight", swap_halves),
    ),
    (
        "gate bias of the convolution zero",
        CLIP,
        lambda b: b.tensor("mmproj", "a.blk.1.conv_pw1.bias", zero_second_half),
    ),
    (
        "causal convolution reversed",
        CLIP,
        lambda b: b.tensor("mmproj", "a.blk.0.conv_dw.weight", reverse_last),
    ),
    (
        "attention chunks of 400",
        LONG_CLIP,
        lambda b: b.number("mmproj", "clip.audio.chunk_size", lambda n: 400),
    ),
    (
        "audio projectors swapped",
        CLIP,
        lambda b: b.swap("mmproj", "mm.a.speech.2.weight", "mm.a.vision.2.weight"),
    ),
]


@pytest.mark.parametrize("case", sorted({case for _, case, _ in FILE_MISTAKES}))
def test_an_unchanged_copy_passes(
    bundle: SpoiledBundle, error_of: Callable[[Path, str], float], case: str
) -> None:
    assert error_of(bundle.folder, case) <= MAX_LOGIT_ERROR


@pytest.mark.parametrize(
    ("case", "spoil"), [pytest.param(c, s, id=what) for what, c, s in FILE_MISTAKES]
)
def test_a_mistake_in_the_files_is_noticed(
    bundle: SpoiledBundle,
    error_of: Callable[[Path, str], float],
    case: str,
    spoil: Callable[[SpoiledBundle], None],
) -> None:
    spoil(bundle)
    assert error_of(bundle.folder, case) > MAX_LOGIT_ERROR


# ---- mistakes of the code


def use_erf_in_the_encoder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(siglip, "gelu_tanh", lambda g, x: g.gelu_erf(x))


def use_tanh_in_the_projectors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Graph, "gelu_erf", gelu_tanh)


def take_masked_patches_for_keys(patch: pytest.MonkeyPatch) -> None:
    attention = siglip.attention
    patch.setattr(
        siglip, "attention", lambda block, x, n_head, n_valid: attention(block, x, n_head, x.ne[1])
    )


def let_masked_patches_attend(patch: pytest.MonkeyPatch) -> None:
    """What the reference's eager path does, in place of its FlashAttention path."""

    def attention(block, x, n_head, n_valid):
        g, n_embd = block.graph, x.ne[0]
        valid = g.rows(x, 0, n_valid)
        q = split_heads(g, block.linear("attn_q", x), n_head)
        k, v = (split_heads(g, block.linear(n, valid), n_head) for n in ("attn_k", "attn_v"))
        heads = g.flash_attention(q, k, v, scale=(n_embd // n_head) ** -0.5)
        return block.linear("attn_out", g.reshape(heads, *x.ne[:2]))

    patch.setattr(siglip, "attention", attention)


def cut_positions_instead_of_stretching(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        siglip, "position_ids", lambda order, rows, cols, n_side: order.rows * n_side + order.cols
    )


def count_distances_backwards(patch: pytest.MonkeyPatch) -> None:
    relative_bias = conformer.relative_bias
    patch.setattr(
        conformer,
        "relative_bias",
        lambda table, n: np.ascontiguousarray(relative_bias(table, n).swapaxes(1, 2)),
    )


def always_use_the_long_factors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContextPlan, "is_long", lambda self, n_tokens: True)


def use_no_adapter_for_pictures(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(MODES, (True, False), Mode(None, None))


def use_the_vision_adapter_for_clips(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(MODES, (False, True), Mode("vision", "speech"))


def use_the_speech_adapter_beside_pictures(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(MODES, (True, True), Mode("speech", "vision"))


def use_the_speech_projector_beside_pictures(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(MODES, (True, True), Mode("vision", "speech"))


CODE_MISTAKES: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (use_erf_in_the_encoder, PICTURE),
    (use_tanh_in_the_projectors, PICTURE),
    (use_tanh_in_the_projectors, CLIP),
    (take_masked_patches_for_keys, ODD_PICTURE),
    (let_masked_patches_attend, ODD_PICTURE),
    (cut_positions_instead_of_stretching, ODD_PICTURE),
    (count_distances_backwards, CLIP),
    (always_use_the_long_factors, TEXT),
    (use_no_adapter_for_pictures, PICTURE),
    (use_the_vision_adapter_for_clips, CLIP),
    (use_the_speech_adapter_beside_pictures, BOTH),
    (use_the_speech_projector_beside_pictures, BOTH),
]


@pytest.mark.parametrize(("spoil", "case"), CODE_MISTAKES)
def test_a_mistake_in_the_code_is_noticed(
    bundle_dir: BundleDir,
    error_of: Callable[[Path, str], float],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
    case: str,
) -> None:
    spoil(monkeypatch)
    assert error_of(bundle_dir("tiny"), case) > MAX_LOGIT_ERROR


@pytest.mark.parametrize("case", ["two_images", "two_audios"])
def test_media_in_the_wrong_order_are_noticed(
    open_model: Callable[..., Phi4MM], media_dir: Path, case: str
) -> None:
    golden = cases("tiny")[case]
    reversed_ = dataclasses.replace(golden, images=golden.images[::-1], audios=golden.audios[::-1])
    logits = logits_of(open_model("tiny"), reversed_, media_dir)
    assert golden.logit_error(logits) > MAX_LOGIT_ERROR
