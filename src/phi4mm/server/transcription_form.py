"""What a form asks of a recording.  What the model cannot do is refused, not ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Literal, get_args

from starlette.datastructures import FormData, UploadFile

from phi4mm.server.error import ApiError
from phi4mm.transcribe.task import (
    TRANSCRIBE,
    Task,
    TaskName,
    known_languages,
    language_name,
    translate_to,
)

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]

_JSON_FORMATS = ("json", "verbose_json")
_TRUTH = {"true": True, "1": True, "false": False, "0": False, "": False}
# lists that OpenAI's models take -> why this one does not
_REFUSED_LISTS = {
    "include": "log probabilities are not given with a transcript: leave it out",
    "keywords": "this model has no keywords: name them in prompt",
    "known_speaker_names": "speakers are not told apart: leave it out",
    "known_speaker_references": "speakers are not told apart: leave it out",
}


@dataclass(frozen=True, slots=True)
class TranscriptionForm:
    """A form, checked.

    Attributes:
        file: the recording, open at its start.
        task: what to do with it.
        hint: text to go with the task; may be empty.
        output: form of the answer.
        is_stream: whether to send events as they come.
        temperature: of sampling.
        language: of the answer, in lower case, as far as it is known.
    """

    file: BinaryIO
    task: Task
    hint: str
    output: Format
    is_stream: bool
    temperature: float
    language: str


def read_form(form: FormData, task: TaskName) -> TranscriptionForm:
    """Check the fields of a form.

    Raises:
        ApiError: 400, with the field.
    """
    for name, reason in _REFUSED_LISTS.items():
        if _list(form, name):
            raise ApiError(400, f"{name}: {reason}", param=name)
    output = _format(form)
    spoken = _spoken_languages(form)
    if task == "translate":
        asked, language = translate_to("en"), "english"
    else:
        asked, language = TRANSCRIBE, spoken[0].lower() if len(spoken) == 1 else "unknown"
    _check_granularities(form, output)
    if (strategy := _text(form, "chunking_strategy")) not in (None, "", "auto"):
        message = f"chunking_strategy is {strategy!r}: pauses are found here, give auto"
        raise ApiError(400, message, param="chunking_strategy")
    return TranscriptionForm(
        file=_file(form),
        task=asked,
        hint=_text(form, "prompt") or "",
        output=output,
        is_stream=_is_stream(form, output),
        temperature=_temperature(form),
        language=language,
    )


def _spoken_languages(form: FormData) -> list[str]:
    """The languages that the form says are spoken.  The model hears them by itself, if at all."""
    given = [("language", _text(form, "language"))]
    given += [("languages", code) for code in _list(form, "languages")]
    names = []
    for field, code in given:
        if not code:
            continue
        name = language_name(code)
        if name is None:
            message = f"{field} is {code!r}: the model's speech knows {known_languages()}"
            raise ApiError(400, message, param=field)
        names.append(name)
    return names


def _check_granularities(form: FormData, output: Format) -> None:
    param, wanted = "timestamp_granularities", _list(form, "timestamp_granularities")
    if unknown := [item for item in wanted if item != "segment"]:
        message = f"{param} holds {unknown[0]!r}: the model gives no times of words, use segment"
        raise ApiError(400, message, param=param)
    if wanted and output != "verbose_json":
        message = f"{param} needs response_format verbose_json, not {output}"
        raise ApiError(400, message, param=param)


def _is_stream(form: FormData, output: Format) -> bool:
    value = _text(form, "stream") or ""
    if (is_stream := _TRUTH.get(value.lower())) is None:
        raise ApiError(400, f"stream is {value!r}: use true or false", param="stream")
    if is_stream and output not in _JSON_FORMATS:
        allowed = " or ".join(_JSON_FORMATS)
        message = f"a stream is events of JSON: use response_format {allowed}, not {output}"
        raise ApiError(400, message, param="response_format")
    return is_stream


def _text(form: FormData, name: str) -> str | None:
    values = form.getlist(name)
    if len(values) > 1:
        raise ApiError(400, f"{name} is there {len(values)} times: give it once", param=name)
    value = values[0] if values else None
    if isinstance(value, UploadFile):
        raise ApiError(400, f"{name} is a file: give text", param=name)
    return value


def _list(form: FormData, name: str) -> list[str]:
    """The texts of a list, whose name some clients write with brackets."""
    values = [*form.getlist(name), *form.getlist(f"{name}[]")]
    return [value for value in values if isinstance(value, str) and value]


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


def _file(form: FormData) -> BinaryIO:
    uploads = form.getlist("file")
    if len(uploads) != 1 or not isinstance(uploads[0], UploadFile):
        message = "file: send one recording as a file"
        raise ApiError(400, message, param="file")
    return uploads[0].file
