"""What a model is asked in an evaluation, and what is right: JSON lines, or a folder of clips."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, cast, get_args

from phi4mm.errors import InputError
from phi4mm.json_lines import JsonLine, read_json_lines, read_utf8

Metric = Literal["exact", "anls", "relaxed", "verbatim", "call"]
_TEXT: Final = ".txt"
_LIBRISPEECH: Final = ".trans.txt"


@dataclass(frozen=True, slots=True)
class ClipItem:
    """A clip and what is said in it.

    Attributes:
        id: its name in results.
        audio: the file.
        text: the words.
        language: ISO 639-1 code.
    """

    id: str
    audio: str
    text: str
    language: str = "en"


@dataclass(frozen=True, slots=True)
class QuestionItem:
    """A question, perhaps with pictures and clips, and its right answers.

    Attributes:
        id: its name in results.
        question: the words; "" where a clip asks.
        answers: any of them is right.
        images: picture files.
        audios: clip files.
        system: words of the system message; "" for none.
        tools: JSON text of the tools on offer; "" for none.
        metric: how an answer is scored.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    system: str = ""
    tools: str = ""
    metric: Metric = "exact"


Item = ClipItem | QuestionItem


def key_of(item: Item) -> str:
    """Tells an item from another with the same id, such as one of a changed manifest."""
    text = json.dumps(asdict(item), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_clips(path: Path) -> list[ClipItem]:
    """Clips of a manifest, or of a folder.

    A manifest has one object in each line: ``{"audio": FILE, "text": WORDS}``, and ``"id"``,
    ``"language"`` if wanted; paths are relative to the manifest.  In a folder and below it, every
    clip has a text file of the same name, or is named in a LibriSpeech ``*.trans.txt``.

    Whether the clips are there, and can be decoded, shows when they are asked about.

    Raises:
        InputError: it cannot be read, a line is wrong, or there is no clip.
    """
    items = list(_folder_clips(path)) if path.is_dir() else list(map(_clip, read_json_lines(path)))
    return cast(list[ClipItem], _checked(path, list(items)))


def read_pictures(path: Path) -> list[QuestionItem]:
    """Questions about pictures of a manifest.

    One object in each line: ``{"image": FILE, "question": WORDS, "answers": [WORDS]}``, and what
    ``read_questions`` takes; several pictures are ``"images"``; paths are relative to the manifest.
    Whether the pictures are there shows when they are asked about.

    Raises:
        InputError: it cannot be read, a line is wrong, or there is no question.
    """
    items: list[Item] = [_question(line, needs_picture=True) for line in read_json_lines(path)]
    return cast(list[QuestionItem], _checked(path, items))


def read_questions(path: Path) -> list[QuestionItem]:
    """Questions of any kind of a manifest.

    One object in each line: ``{"question": WORDS, "answers": [WORDS]}``; if wanted ``"id"``,
    ``"metric"``, ``"image"`` or ``"images"``, ``"audio"`` or ``"audios"``, which may ask in place
    of the words, ``"system"`` (words of a system message) and ``"tools"`` (JSON text of a list).

    Raises:
        InputError: it cannot be read, a line is wrong, or there is no question.
    """
    items: list[Item] = [_question(line, needs_picture=False) for line in read_json_lines(path)]
    return cast(list[QuestionItem], _checked(path, items))


def _clip(line: JsonLine) -> ClipItem:
    item = ClipItem(
        id=line.take("id", str(line.number)),
        audio=str(line.folder / line.take("audio")),
        text=line.take("text"),
        language=line.take("language", "en"),
    )
    line.finish()
    return item


def _question(line: JsonLine, *, needs_picture: bool) -> QuestionItem:
    images = line.take_paths("image") if needs_picture or _has(line, "image") else ()
    audios = line.take_paths("audio") if _has(line, "audio") else ()
    metric = line.take("metric", "exact")
    if metric not in get_args(Metric):
        allowed = ", ".join(get_args(Metric))
        raise InputError(f"{line.where}: 'metric' is {metric!r}, must be one of {allowed}")
    item = QuestionItem(
        id=line.take("id", str(line.number)),
        question=_take_or_none(line, "question") if audios else line.take("question"),
        answers=line.take_strings("answers"),
        images=images,
        audios=audios,
        system=_take_or_none(line, "system"),
        tools=_take_or_none(line, "tools"),
        metric=cast(Metric, metric),
    )
    line.finish()
    return item


def _has(line: JsonLine, name: str) -> bool:
    return not line.values.keys().isdisjoint((name, f"{name}s"))


def _take_or_none(line: JsonLine, name: str) -> str:
    """A text that may be missing, as ""."""
    return line.take(name) if name in line.values else ""


def _folder_clips(folder: Path) -> Iterator[ClipItem]:
    for path in sorted(folder.rglob(f"*{_TEXT}")):
        if path.name.endswith(_LIBRISPEECH):
            for line in read_utf8(path).splitlines():
                name, _, words = line.partition(" ")
                yield ClipItem(name, str(path.with_name(f"{name}.flac")), words)
            continue
        clips = [p for p in path.parent.glob(f"{path.stem}.*") if p.suffix != _TEXT]
        if len(clips) > 1:
            raise InputError(f"{path}: {len(clips)} clips have this name, must be one")
        clip = clips[0] if clips else path.with_suffix(".*")  # the latter is never there
        name = str(path.relative_to(folder).with_suffix(""))
        yield ClipItem(name, str(clip), read_utf8(path).strip())


def _checked(path: Path, items: list[Item]) -> list[Item]:
    """Refuse what would go wrong half way."""
    if not items:
        raise InputError(f"{path}: nothing to evaluate in it")
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        double = next(id_ for id_ in ids if ids.count(id_) > 1)
        raise InputError(f"{path}: the id {double!r} is there twice, ids must differ")
    return items
