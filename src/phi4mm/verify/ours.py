"""The bundle's side: stages of the encoders, logits and greedy answers."""

from __future__ import annotations

from contextlib import ExitStack, closing

import numpy as np

from phi4mm.api import Phi4MM
from phi4mm.encoders.conformer import AudioEncoder
from phi4mm.encoders.siglip import VisionEncoder
from phi4mm.encoders.tap import Taps
from phi4mm.engine.parameters import SamplingParams
from phi4mm.modelfile.tensors import AUDIO_PROJECTORS
from phi4mm.native.ggml import Backend
from phi4mm.native.library import load
from phi4mm.verify.case import CLIP, N_GREEDY, PICTURE, Answer, Case, Stages


def encoder_stages(model: Phi4MM, n_threads: int) -> Stages:
    """Intermediate tensors of a picture and a clip, as far as the bundle has encoders."""
    stages: Stages = {}
    mmproj = model.bundle.mmproj
    if mmproj is None:
        return stages
    with ExitStack() as stack:
        backend = stack.enter_context(closing(Backend(load(), n_threads)))
        if mmproj.vision is not None:
            names = [f"vis.layer{il}" for il in range(mmproj.vision.n_layer)]
            taps = Taps(names := [*names, "vis.hd_tokens", "vis.projected"])
            vision = stack.enter_context(
                closing(VisionEncoder(mmproj.file, mmproj.vision, backend))
            )
            picture = model.prompts.picture(PICTURE)
            vision.encode(picture.crops(), picture.plan, taps=taps)
            stages |= {name: taps.pieces(name) for name in names}
        if mmproj.audio is not None:
            names = [f"aud.block{il}" for il in range(mmproj.audio.n_layer)]
            projected = [f"aud.projected.{name}" for name in AUDIO_PROJECTORS]
            taps = Taps(names := ["aud.subsampled", *names, "aud.encoder_out"])
            audio = stack.enter_context(closing(AudioEncoder(mmproj.file, mmproj.audio, backend)))
            mel = model.prompts.sound(CLIP).mel()
            for name, tap in zip(AUDIO_PROJECTORS, projected, strict=True):
                once = taps if name == AUDIO_PROJECTORS[0] else None
                stages[tap] = [audio.encode(mel, name, taps=once)]
            stages |= {name: taps.pieces(name) for name in names}
    return stages


def answer(model: Phi4MM, case: Case) -> Answer:
    """Logits of a prompt, and the greedy answer to it.

    The answer ends where the sequence would outgrow the original context: the RoPE factors change
    there.
    """
    logits = model.logits(case.prompt, case.images, case.audios)
    n_tokens, n_orig = len(logits), model.bundle.decoder.hparams.n_ctx_orig
    room = n_orig - n_tokens if n_tokens < n_orig else N_GREEDY
    tokens: list[int] = []
    sampling = SamplingParams(max_tokens=min(N_GREEDY, room))
    for event in model.generate_raw(case.prompt, case.images, case.audios, sampling):
        tokens += event.token_ids
    return Answer(np.asarray(logits), tuple(tokens))
