"""Encoders, and the time to the first token of requests as people make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from phi4mm.api import Phi4MM
from phi4mm.bench.measure import Measure, Runs, timed
from phi4mm.bench.peak import Peak, Work, least_s
from phi4mm.bench.work import crop_work, prefill_work, sound_work
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.errors import InputError
from phi4mm.measurement.workload import noise_clip, noise_picture
from phi4mm.media.audio import AudioSource
from phi4mm.media.image import ImageSource
from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt.message import Message, user_message

_CLIP_S = 30.0
_QUESTION = "What do you notice? Answer in one short sentence, and say how sure you are of it."

Skip = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A request to time.

    Attributes:
        name: for the table.
        picture: width and height in crops; None for no picture.
        clip_s: seconds of sound; 0 for none.
        is_repeat: whether a first question about the same media was answered before.
    """

    name: str
    picture: tuple[int, int] | None = None
    clip_s: float = 0.0
    is_repeat: bool = False


def cases(bundle: Bundle) -> list[Case]:
    """The requests that a bundle is timed with, pictures named by their pixels."""
    found = [Case("TTFT text")]
    if bundle.vision is not None:
        side = bundle.vision.image_size
        found += [
            Case(f"TTFT picture {side}x{side}", picture=(1, 1)),
            Case(f"TTFT picture {3 * side}x{2 * side}", picture=(3, 2)),
            Case("TTFT second question", picture=(1, 1), is_repeat=True),
        ]
    if bundle.audio is not None:
        found.append(Case(f"TTFT {_CLIP_S:.0f} s of sound", clip_s=_CLIP_S))
    return found


def n_encoded_crops(cols: int, rows: int) -> int:
    """Crops that are computed of a picture of whole, different crops.

    The global crop of a single one is that crop, and equal crops are encoded once.
    """
    return 1 if cols * rows == 1 else 1 + cols * rows


def n_encoder_measures(bundle: Bundle) -> int:
    """How many measures ``measure_encoders`` makes."""
    return sum(encoder is not None for encoder in (bundle.vision, bundle.audio))


def measure_encoders(model: Phi4MM, runs: Runs, peak: Peak | None) -> Iterator[Measure]:
    """Seconds per crop, and per second of sound, from pixels and samples to embeddings."""
    mmproj, bundle = model.bundle.mmproj, model.bundle
    if mmproj is None:
        return
    seeds = count(1000)
    if bundle.vision is not None:
        side, n_crops = bundle.vision.image_size, n_encoded_crops(1, 1)
        works = [crop_work(bundle.vision, mmproj.file)] * n_crops
        yield Measure.of_seconds(
            "vision encoder",
            timed(lambda _: model.encode_image(noise_picture(side, side, next(seeds))), runs),
            least_s(peak, *works),
            unit="s/crop",
            per=n_crops,
        )
    if bundle.audio is not None:
        rate = bundle.audio.mel.sample_rates[0]
        works = [sound_work(bundle.audio, mmproj.file, _CLIP_S)]
        yield Measure.of_seconds(
            "audio encoder (RTF)",
            timed(lambda _: model.encode_audio(noise_clip(_CLIP_S, rate, next(seeds))), runs),
            least_s(peak, *works),
            unit="s/s",
            per=_CLIP_S,
        )


def measure_answers(
    model: Phi4MM, params: EngineParams, runs: Runs, peak: Peak | None, skip: Skip
) -> Iterator[Measure]:
    """Time to the first token of every case that the bundle can answer and the context holds.

    Args:
        model: loaded.
        params: what it was loaded with.
        runs: how often each is made; medians are taken.
        peak: of the machine that computes.
        skip: told of each case that is left out, and why.
    """
    seeds = count()
    for case in cases(model.bundle):
        seconds = []
        try:
            for _ in range(runs.n_all):
                seconds.append(_first_token_s(model, case, next(seeds)))
                runs.done()
        except InputError as error:
            skip(f"{case.name}: {error}")
            continue
        works = _works(model, case, params)
        yield Measure.of_seconds(case.name, seconds[1:], least_s(peak, *works))


def _first_token_s(model: Phi4MM, case: Case, seed: int) -> float:
    if case.is_repeat:
        _answer(model, _message(model.bundle, case, seed, "What is this?"))
    return _answer(model, _message(model.bundle, case, seed, f"{seed}: {_QUESTION}"))


def _answer(model: Phi4MM, message: Message) -> float:
    event = list(model.generate([message], SamplingParams(max_tokens=1)))[-1]
    assert event.timings.first_token_s is not None
    return event.timings.first_token_s


def _message(bundle: Bundle, case: Case, seed: int, text: str) -> Message:
    images: list[ImageSource] = []
    audios: list[AudioSource] = []
    if case.picture is not None:
        assert bundle.vision is not None
        width, height = (n * bundle.vision.image_size for n in case.picture)
        images.append(noise_picture(width, height, seed))
    if case.clip_s:
        assert bundle.audio is not None
        audios.append(noise_clip(case.clip_s, bundle.audio.mel.sample_rates[0], seed))
    return user_message(text, images=images, audios=audios)


def _works(model: Phi4MM, case: Case, params: EngineParams) -> Iterator[Work]:
    """What a case takes at least: encoding, and prefill of what is not kept."""
    bundle = model.bundle
    prompt = model.prompts.chat([_message(bundle, case, 0, f"0: {_QUESTION}")])
    adapter = None if prompt.mode.adapter is None else bundle.adapters.get(prompt.mode.adapter)
    n_tokens = prompt.chunks[-1].n_tokens if case.is_repeat else prompt.n_tokens
    yield prefill_work(bundle.decoder, adapter, n_tokens, params.n_batch)
    if bundle.mmproj is None or case.is_repeat:
        return
    if case.picture is not None and bundle.vision is not None:
        n_crops = n_encoded_crops(*case.picture)
        yield from [crop_work(bundle.vision, bundle.mmproj.file)] * n_crops
    if case.clip_s and bundle.audio is not None:
        yield sound_work(bundle.audio, bundle.mmproj.file, case.clip_s)
