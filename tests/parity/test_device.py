"""The same numbers on accelerators: decoder and encoders, one device and all of them.

Runs where the native library finds an accelerator (`phi4mm devices`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.answer import logits_of
from parity.fixtures import N_THREADS, BundleDir
from parity.goldens import cases, difference, every
from phi4mm import Offload, Phi4MM, SamplingParams
from phi4mm.native.device import list_devices
from phi4mm.native.library import load

ACCELERATORS = [device.name for device in list_devices(load()) if device.is_accelerator]
# Kernels of accelerators may multiply in 16 bits; on one that computes in 32 the bounds of the CPU
# hold.  Other adapters, crops or RoPE factors are off by more than 1 (test_controls.py).
MAX_ERROR = 0.05
LAYERS = 99

OFFLOADS = [
    *(Offload(LAYERS, (name,)) for name in ACCELERATORS),
    *([Offload(LAYERS), Offload(1, main_gpu=0)] if ACCELERATORS else []),
    *([Offload(0, tuple(ACCELERATORS[-1:]))] if ACCELERATORS else []),
]

pytestmark = pytest.mark.skipif(not ACCELERATORS, reason="the native library finds no accelerator")


@pytest.mark.parametrize("offload", OFFLOADS, ids=str)
@pytest.mark.parametrize("case", ["text_base", "text_speech", "image_audio_text", "a16000_8000"])
def test_logits_match_the_reference(
    bundle_dir: BundleDir, media_dir: Path, offload: Offload, case: str
) -> None:
    golden = cases("heads")[case]
    with open_on(bundle_dir, offload) as model:
        assert golden.logit_error(logits_of(model, golden, media_dir)) <= MAX_ERROR


@pytest.mark.parametrize("name", ACCELERATORS)
def test_encoders_match_the_reference(bundle_dir: BundleDir, media_dir: Path, name: str) -> None:
    picture, clip = cases("heads")["i700x500"], cases("heads")["a48077_16000"]
    with open_on(bundle_dir, Offload(0, (name,))) as model:
        image = model.encode_image(media_dir / picture.images[0])
        audio = model.encode_audio(media_dir / clip.audios[0])
    assert difference(every(image), picture.tensors["image.0"]) <= MAX_ERROR
    assert difference(every(audio), clip.tensors["audio.0"]) <= MAX_ERROR


@pytest.mark.parametrize("name", ACCELERATORS)
def test_an_answer_can_be_stopped(bundle_dir: BundleDir, name: str) -> None:
    with open_on(bundle_dir, Offload(LAYERS, (name,))) as model:
        events = model.generate_raw("<|user|>Hi<|end|>", sampling=SamplingParams(max_tokens=9))
        next(iter(events))
        events.close()
        assert len(list(model.generate_raw("Hi", sampling=SamplingParams(max_tokens=2)))) >= 1


def open_on(bundle_dir: BundleDir, offload: Offload) -> Phi4MM:
    folder = bundle_dir("heads")
    return Phi4MM(folder, n_ctx=4096, n_threads=N_THREADS, kv_type="f32", offload=offload)
