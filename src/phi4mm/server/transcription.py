"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: recordings of any length."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from phi4mm.engine.event import Usage
from phi4mm.server.choice import Json
from phi4mm.server.error import ApiError
from phi4mm.server.event_stream import EventStream
from phi4mm.server.recording import Recording
from phi4mm.server.service import Service, cancelled_on_disconnect
from phi4mm.server.transcription_form import TranscriptionForm, read_form
from phi4mm.transcribe.formats import FORMATS
from phi4mm.transcribe.segment import Segment, join_texts
from phi4mm.transcribe.task import TaskName

# as much as OpenAI's first model of this kind reads
_MAX_HINT_TOKENS = 224


async def transcriptions(request: Request) -> Response:
    """The words of a recording."""
    return await _answer(request, "transcribe")


async def translations(request: Request) -> Response:
    """What is said in a recording, in English."""
    return await _answer(request, "translate")


async def _answer(request: Request, task: TaskName) -> Response:
    service: Service = request.app.state.service
    data = await request.form()
    model = data.get("model")
    service.require_model(model if isinstance(model, str) else None)
    form = read_form(data, task)
    _check_hint(service, form.hint)
    recording = Recording(service, form)
    try:
        await recording.begin()
    except BaseException:
        recording.cancel()
        raise
    if form.is_stream:
        return EventStream(service, recording, _events(recording, form), end=None)
    with service.limited(recording):
        async with cancelled_on_disconnect(request.receive, recording):
            segments = [segment async for segment in recording.segments()]
    return _respond(form, segments, recording)


def _check_hint(service: Service, hint: str) -> None:
    n_tokens = len(service.tokenizer.encode(hint))
    if n_tokens > _MAX_HINT_TOKENS:
        message = f"prompt has {n_tokens} tokens: give at most {_MAX_HINT_TOKENS}"
        raise ApiError(400, message, param="prompt")


async def _events(recording: Recording, form: TranscriptionForm) -> AsyncIterator[Json]:
    """A delta for each segment, its times with ``verbose_json``, and the whole text at the end."""
    text, number = "", 0
    async for segment in recording.segments():
        id_, before = f"seg_{number}", len(text)
        text, number = join_texts([text, segment.text]), number + 1
        delta = {"type": "transcript.text.delta", "delta": text[before:]}
        if form.output == "json":
            if segment.text:
                yield delta
            continue
        yield {**delta, "segment_id": id_}
        yield {"type": "transcript.text.segment", "id": id_, **_times(segment)}
    yield {"type": "transcript.text.done", "text": text, "usage": _usage(recording.usage)}


def _respond(
    form: TranscriptionForm, segments: Sequence[Segment], recording: Recording
) -> Response:
    """The transcript in the form asked for."""
    text = join_texts(segment.text for segment in segments)
    if form.output == "text":
        return PlainTextResponse(f"{text}\n")
    if form.output in ("srt", "vtt"):
        writer = FORMATS[form.output]()
        return PlainTextResponse(writer.begin() + "".join(map(writer.add, segments)))
    body: Json = {"text": text, "usage": _usage(recording.usage)}
    if form.output == "verbose_json":
        body |= {
            "task": form.task.name,
            "language": form.language,
            "duration": round(recording.seconds, 3),
            "segments": [{"id": i, **_times(segment)} for i, segment in enumerate(segments)],
        }
    return JSONResponse(body)


def _times(segment: Segment) -> Json:
    note = {} if segment.note is None else {"note": segment.note}
    times = {"start": round(segment.start_s, 3), "end": round(segment.end_s, 3)}
    return {**times, "text": segment.text, **note}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": usage.n_prompt,
        "output_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "input_token_details": {"text_tokens": usage.n_text, "audio_tokens": usage.n_audio},
    }
