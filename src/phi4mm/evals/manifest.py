"""What a model is asked in an evaluation, and what is right: JSON lines, or a folder of clips."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from phi4mm.errors import InputError

Metric = Literal["exact", "anls", "relaxed"]
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
class PictureItem:
    """A question about pictures and its right answers.

    Attributes:
        id: its name in results.
        images: the files.
        question: the words.
        answers: any of them is right.
        metric: how an answer is scored.
    """

    id: str
    images: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    metric: Metric = "exact"


Item = ClipItem | PictureItem


def key_of(item: Item) -> str:
    """Tells an item from another with the same id, such as one of a changed manifest."""
    text = json.dumps(asdict(item), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_clips(path: Path) -> list[ClipItem]:
    """Clips of a manifest, or of a folder.

    A manifest has one object in each line: ``{"audio": FILE, "text": WORDS}``, and ``"id"``,
    ``"language"`` if wanted; paths are relative to the manifest.  In a folder and below it, every
    clip has a text file of the same name, or is named in a LibriSpeech ``*.trans.txt``.

    Raises:
        InputError: it cannot be read, a line is wrong, a file is missing, or there is no clip.
    """
    items = list(_folder_clips(path)) if path.is_dir() else list(map(_clip, _lines(path)))
    return cast(list[ClipItem], _checked(path, list(items)))


def read_pictures(path: Path) -> list[PictureItem]:
    """Questions of a manifest.

    One object in each line: ``{"image": FILE, "question": WORDS, "answers": [WORDS]}``, and
    ``"id"``, ``"metric"`` (exact, anls or relaxed) if wanted; several pictures are ``"images"``;
    paths are relative to the manifest.

    Raises:
        InputError: it cannot be read, a line is wrong, a file is missing, or there is no question.
    """
    return cast(list[PictureItem], _checked(path, list(map(_picture, _lines(path)))))


@dataclass(frozen=True, slots=True)
class _Line:
    """An object of a manifest, and where it stands."""

    where: str
    number: int
    folder: Path
    values: dict[str, Any]

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.values.pop(name, default)
        if not isinstance(value, kind) or value in ("", []):
            wanted = "a list of strings" if kind is list else "a string, not empty"
            raise InputError(f"{self.where}: {name!r} is {value!r:.60}, must be {wanted}")
        return value

    def take_strings(self, name: str) -> tuple[str, ...]:
        values = self.take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise InputError(f"{self.where}: {name!r} must be a list of strings")
        return tuple(values)

    def finish(self) -> None:
        if self.values:
            raise InputError(f"{self.where}: unknown fields {', '.join(sorted(self.values))}")


def _lines(path: Path) -> Iterator[_Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"{where}: must be an object")
        yield _Line(where, number, path.parent, values)


def _clip(line: _Line) -> ClipItem:
    item = ClipItem(
        id=line.take("id", str, str(line.number)),
        audio=str(line.folder / line.take("audio", str)),
        text=line.take("text", str),
        language=line.take("language", str, "en"),
    )
    line.finish()
    return item


def _picture(line: _Line) -> PictureItem:
    several = "images" in line.values
    images = line.take_strings("images") if several else (line.take("image", str),)
    metric = line.take("metric", str, "exact")
    if metric not in get_args(Metric):
        allowed = ", ".join(get_args(Metric))
        raise InputError(f"{line.where}: 'metric' is {metric!r}, must be one of {allowed}")
    item = PictureItem(
        id=line.take("id", str, str(line.number)),
        images=tuple(str(line.folder / image) for image in images),
        question=line.take("question", str),
        answers=line.take_strings("answers"),
        metric=cast(Metric, metric),
    )
    line.finish()
    return item


def _folder_clips(folder: Path) -> Iterator[ClipItem]:
    for path in sorted(folder.rglob(f"*{_TEXT}")):
        if path.name.endswith(_LIBRISPEECH):
            for line in path.read_text(encoding="utf-8").splitlines():
                name, _, words = line.partition(" ")
                yield ClipItem(name, str(path.with_name(f"{name}.flac")), words)
            continue
        clips = [p for p in path.parent.glob(f"{path.stem}.*") if p.suffix != _TEXT]
        if len(clips) != 1:
            raise InputError(f"{path}: {len(clips)} clips have this name, must be one")
        name = str(path.relative_to(folder).with_suffix(""))
        yield ClipItem(name, str(clips[0]), path.read_text(encoding="utf-8").strip())


def _checked(path: Path, items: list[Item]) -> list[Item]:
    """Refuse what would go wrong half way."""
    if not items:
        raise InputError(f"{path}: nothing to evaluate in it")
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        double = next(id_ for id_ in ids if ids.count(id_) > 1)
        raise InputError(f"{path}: the id {double!r} is there twice, ids must differ")
    for item in items:
        for file in (item.audio,) if isinstance(item, ClipItem) else item.images:
            if not Path(file).is_file():
                raise InputError(f"{path}: item {item.id!r}: {file}: no such file")
    return items
