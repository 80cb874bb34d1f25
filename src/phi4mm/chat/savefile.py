"""A whole conversation, media included, as one JSON file.

{"format": "phi4mm-conversation", "version": 1, "system": "..." or null,
 "turns": [{"question": [{"type": "text", "text": "..."},
                         {"type": "image" or "audio", "name": "cat.png", "data": BASE64}],
            "answer": "..."}]}
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phi4mm.errors import InputError
from phi4mm.media.source import decode_base64
from phi4mm.prompt.conversation import Conversation, Turn
from phi4mm.prompt.message import AudioPart, ImagePart, Message, Part, TextPart

FORMAT, VERSION = "phi4mm-conversation", 1
_MEDIA: dict[str, type[ImagePart] | type[AudioPart]] = {"image": ImagePart, "audio": AudioPart}


def save_conversation(path: Path, conversation: Conversation) -> None:
    """Write a conversation; another saved one of that name is replaced, any other file is not.

    Raises:
        InputError: the file exists and is something else, or cannot be written.
    """
    if path.exists():
        load_conversation(path)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "system": conversation.system,
        "turns": [_turn_object(turn) for turn in conversation.turns],
    }
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        unfinished.unlink(missing_ok=True)


def load_conversation(path: Path) -> Conversation:
    """Read what ``save_conversation`` wrote.  Media are not decoded yet.

    Raises:
        InputError: the file cannot be read or is not such a file.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no file; name one that /save wrote")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not a saved conversation ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: is not a saved conversation; /save writes them")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise InputError(f"{path}: has version {version!r}, this program reads {VERSION}")
    try:
        return _conversation(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is damaged at {error}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _turn_object(turn: Turn) -> dict[str, Any]:
    names = iter(turn.names)
    return {
        "question": [_part_object(part, names) for part in turn.question.parts],
        "answer": turn.answer,
    }


def _part_object(part: Part, names: Any) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    assert isinstance(part.source, bytes), "a chat holds its media as files' bytes"
    return {
        "type": "image" if isinstance(part, ImagePart) else "audio",
        "name": next(names, ""),
        "data": base64.b64encode(part.source).decode("ascii"),
    }


def _conversation(document: Mapping[str, Any]) -> Conversation:
    turns = _typed(document, "turns", list)
    return Conversation(
        system=_typed(document, "system", str, optional=True),
        turns=tuple(_turn(turn, is_last=turn is turns[-1]) for turn in turns),
    )


def _turn(turn: Mapping[str, Any], *, is_last: bool) -> Turn:
    items = _typed(turn, "question", list)
    answer = _typed(turn, "answer", str, optional=is_last)
    names = tuple(_typed(item, "name", str) for item in items if item["type"] in _MEDIA)
    return Turn(Message("user", tuple(map(_part, items))), answer, names)


def _part(item: Mapping[str, Any]) -> Part:
    if item["type"] == "text":
        return TextPart(_typed(item, "text", str))
    data = decode_base64(_typed(item, "data", str), f"medium {item['name']!r}")
    return _MEDIA[item["type"]](data)


def _typed(object_: Mapping[str, Any], key: str, kind: type, *, optional: bool = False) -> Any:
    value = object_[key]
    if not (isinstance(value, kind) or (optional and value is None)):
        raise ValueError(f"{key!r}, which is {type(value).__name__}")
    return value
