"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, get_args

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from phi4mm.api import TRANSCRIBE_PROMPT
from phi4mm.engine.event import Event
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import MediaError
from phi4mm.prompt.chunk import Prompt
from phi4mm.prompt.medium import Sound
from phi4mm.prompt.message import user_message
from phi4mm.server.choice import usage_json
from phi4mm.server.engine_client import Job
from phi4mm.server.error import ApiError
from phi4mm.server.event_stream import EventStream
from phi4mm.server.service import Service, cancelled_on_disconnect

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
_TRANSLATE_PROMPT = "Translate the audio to English."


async def transcriptions(request: Request) -> Response:
    """The words of a clip."""
    return await _answer(request, TRANSCRIBE_PROMPT, "transcribe")


async def translations(request: Request) -> Response:
    """What is said in a clip, in English."""
    return await _answer(request, _TRANSLATE_PROMPT, "translate")


async def _answer(request: Request, instruction: str, task: str) -> Response:
    service: Service = request.app.state.service
    form = await request.form()
    service.require_model(_text(form, "model"))
    output = _format(form)
    hint = _text(form, "prompt")
    text = f"{instruction} {hint}" if hint else instruction
    sampling = SamplingParams(temperature=_temperature(form))
    data = await _file(form)
    seconds = 0.0

    def make_prompt() -> Prompt:
        nonlocal seconds
        prompt = service.prompts.chat([user_message(text, audios=[data])])
        sounds = (chunk for chunk in prompt.chunks if isinstance(chunk, Sound))
        seconds = sum(sound.clip.duration_s for sound in sounds)
        return prompt

    job = await service.submit(make_prompt, sampling, 1)
    if _text(form, "stream") in ("true", "True", "1"):
        return EventStream(service, job, _pieces(service, job), end=None)
    with service.limited(job):
        async with cancelled_on_disconnect(request.receive, job):
            events = [event async for _, event in service.events(job)]
    transcript = "".join(event.text for event in events).strip()
    return _respond(output, transcript, seconds, task, events[-1])


async def _pieces(service: Service, job: Job) -> AsyncIterator[dict[str, Any]]:
    text = ""
    async for _, event in service.events(job):
        text += event.text
        if event.text:
            yield {"type": "transcript.text.delta", "delta": event.text}
        if event.finish_reason is not None:
            usage = _usage(event)
            yield {"type": "transcript.text.done", "text": text.strip(), "usage": usage}


def _respond(output: Format, text: str, seconds: float, task: str, last: Event) -> Response:
    """The transcript in the form asked for.  The model gives no times: it is one segment."""
    if output == "text":
        return PlainTextResponse(text + "\n")
    if output == "srt":
        end = _clock(seconds, ",")
        return PlainTextResponse(f"1\n00:00:00,000 --> {end}\n{text}\n\n")
    if output == "vtt":
        end = _clock(seconds, ".")
        return PlainTextResponse(f"WEBVTT\n\n00:00:00.000 --> {end}\n{text}\n\n")
    body: dict[str, Any] = {"text": text, "usage": _usage(last)}
    if output == "verbose_json":
        segment = {"id": 0, "start": 0.0, "end": seconds, "text": text}
        body |= {"task": task, "duration": seconds, "segments": [segment]}
    return JSONResponse(body)


def _usage(last: Event) -> dict[str, Any]:
    usage = usage_json([last])
    details = usage["prompt_tokens_details"]
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "input_token_details": {name: details[name] for name in ("text_tokens", "audio_tokens")},
    }


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{point}{milliseconds:03}"


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if isinstance(value, UploadFile):
        raise ApiError(400, f"{name} is a file: give text", param=name)
    return value


def _format(form: FormData) -> Format:
    value = _text(form, "response_format") or "json"
    for known in get_args(Format):
        if value == known:
            return known  # type: ignore[no-any-return]
    allowed = ", ".join(get_args(Format))
    message = f"response_format is {value!r}: use one of {allowed}"
    raise ApiError(400, message, param="response_format")


def _temperature(form: FormData) -> float:
    value = _text(form, "temperature") or "0"
    try:
        return float(value)
    except ValueError:
        message = f"temperature is {value!r}: give a number"
        raise ApiError(400, message, param="temperature") from None


async def _file(form: FormData) -> bytes:
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise ApiError(400, "file is missing: send the clip as a file", param="file")
    data = await upload.read()
    if not data:
        raise MediaError("file has 0 bytes: send a clip with contents")
    return data
