"""Pictures and clips: mel, intermediate tensors and embeddings against the reference."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from parity.fixtures import N_THREADS, BundleDir, OpenModel
from parity.goldens import MAX_FEATURE_ERROR, NAMES, cases, difference, every
from phi4mm import Phi4MM
from phi4mm.encoders.conformer import AudioEncoder
from phi4mm.encoders.siglip import VisionEncoder
from phi4mm.encoders.tap import Taps
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native import graph, openblas
from phi4mm.native.blas_product import BlasProducts
from phi4mm.native.ggml import Backend
from phi4mm.native.library import load
from phi4mm.native.product_choice import ProductChoice
from phi4mm.prompt.medium import image_params, mel_params, open_picture, open_sound

PICTURE_CASES = ("i448x448", "i700x500", "i150x333", "i1000x450")
# A clip beside a picture goes through the other audio projector.
CLIP_CASES = {
    "a48077_16000": "speech",
    "a688055_16000": "speech",
    "a16000_8000": "speech",
    "image_audio": "vision",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", PICTURE_CASES)
def test_picture_embeddings_match(
    open_model: OpenModel, media_dir: Path, name: str, case: str
) -> None:
    golden = cases(name)[case]
    embeddings = open_model(name).encode_image(media_dir / golden.images[0])
    assert difference(every(embeddings), golden.tensors["image.0"]) <= MAX_FEATURE_ERROR


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CLIP_CASES)
def test_clip_embeddings_match(
    open_model: OpenModel, media_dir: Path, name: str, case: str
) -> None:
    golden = cases(name)[case]
    embeddings = open_model(name).encode_audio(media_dir / golden.audios[0], CLIP_CASES[case])
    assert difference(every(embeddings), golden.tensors["audio.0"]) <= MAX_FEATURE_ERROR


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [*PICTURE_CASES, *CLIP_CASES])
def test_embeddings_match_with_every_product_by_openblas(
    bundle_dir: BundleDir,
    media_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    case: str,
) -> None:
    golden = cases(name)[case]
    kind = "image.0" if case in PICTURE_CASES else "audio.0"
    n_products = use_openblas(monkeypatch)
    with Phi4MM(bundle_dir(name), n_threads=N_THREADS) as model:
        embeddings = encode(model, media_dir, case, name)
    assert len(n_products) > 10
    assert difference(every(embeddings), golden.tensors[kind]) <= MAX_FEATURE_ERROR


@pytest.mark.parametrize("case", ["i448x448", "a48077_16000"])
def test_and_would_not_with_one_part_in_a_thousand_more(
    bundle_dir: BundleDir, media_dir: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    golden = cases("tiny")[case]
    kind = "image.0" if case in PICTURE_CASES else "audio.0"
    use_openblas(monkeypatch)
    widened = BlasProducts._widened
    monkeypatch.setattr(BlasProducts, "_widened", lambda *args: widened(*args) * np.float32(1.001))
    with Phi4MM(bundle_dir("tiny"), n_threads=N_THREADS) as model:
        embeddings = encode(model, media_dir, case, "tiny")
    assert difference(every(embeddings), golden.tensors[kind]) > MAX_FEATURE_ERROR


def use_openblas(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """For every product with a stored matrix from now on; gives the weights it is used for."""
    if not openblas.is_here():
        pytest.skip("numpy has another library for products")
    weights: list[object] = []
    add = BlasProducts.add
    monkeypatch.setattr(graph, "is_worth_it", lambda _n_rows, _n_weights: True)
    monkeypatch.setattr(ProductChoice, "__call__", lambda _self, _type: True)
    monkeypatch.setattr(
        BlasProducts, "add", lambda self, *args: weights.append(args[1]) or add(self, *args)
    )
    return weights


def encode(model: Phi4MM, media_dir: Path, case: str, name: str) -> np.ndarray:
    golden = cases(name)[case]
    if case in PICTURE_CASES:
        return model.encode_image(media_dir / golden.images[0])
    return model.encode_audio(media_dir / golden.audios[0], CLIP_CASES[case])


@pytest.mark.parametrize("case", ["a48077_16000", "a688055_16000", "a16000_8000"])
def test_log_mel_matches(open_model: OpenModel, media_dir: Path, case: str) -> None:
    golden = cases("tiny")[case]
    mel = open_model("tiny").prompts.sound(media_dir / golden.audios[0]).mel()
    assert difference(every(mel), golden.tensors["mel.0"]) <= MAX_FEATURE_ERROR


@pytest.mark.parametrize("name", NAMES)
def test_intermediate_tensors_of_a_picture_match(
    bundle_dir: BundleDir, media_dir: Path, name: str
) -> None:
    golden = cases(name)["i150x333"]
    expected = dict(golden.taps())
    taps = Taps(expected)
    with Bundle.open(bundle_dir(name)) as bundle, Backend(load(), N_THREADS) as backend:
        picture = open_picture(media_dir / golden.images[0], image_params(bundle.mmproj.vision))
        with closing(VisionEncoder(bundle.mmproj.file, bundle.mmproj.vision, backend)) as encoder:
            encoder.encode(picture.crops(), picture.plan, taps=taps)
    check_taps(taps, expected)


@pytest.mark.parametrize("name", NAMES)
def test_intermediate_tensors_of_a_clip_match(
    bundle_dir: BundleDir, media_dir: Path, name: str
) -> None:
    golden = cases(name)["a48077_16000"]
    expected = dict(golden.taps())
    taps = Taps(expected)
    with Bundle.open(bundle_dir(name)) as bundle, Backend(load(), N_THREADS) as backend:
        sound = open_sound(media_dir / golden.audios[0], mel_params(bundle.mmproj.audio))
        with closing(AudioEncoder(bundle.mmproj.file, bundle.mmproj.audio, backend)) as encoder:
            encoder.encode(sound.mel(), "speech", taps=taps)
    check_taps(taps, expected)


def check_taps(taps: Taps, expected: dict[str, np.ndarray]) -> None:
    assert expected
    for name, tensor in expected.items():
        rows = every(np.concatenate(taps.pieces(name)))
        computed = np.isfinite(rows).all(-1)  # masked patches without a part in the result are not
        assert computed.mean() > 0.5, name
        assert difference(rows[computed], tensor[computed]) <= MAX_FEATURE_ERROR, name
