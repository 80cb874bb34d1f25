"""What an importance matrix is collected from: a text, and conversations with media."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.errors import InputError
from phi4mm.json_lines import JsonLine, read_json_lines
from phi4mm.media.sniff import HEAD_BYTES, MediaKind, media_kind

DEFAULT_CHUNK_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a user asks, and what is answered.

    Attributes:
        name: for messages.
        images: files of pictures.
        audios: files of clips.
        prompt: the user's words; may be empty if there are media.
        answer: the assistant's words; None leaves them out.
        system: the system message's words; may be empty.
        tools: JSON text that describes the tools on offer; None for none.
    """

    name: str
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    prompt: str = ""
    answer: str | None = None
    system: str = ""
    tools: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything that is computed for one importance matrix.

    Attributes:
        datasets: names of the files and folders it is read from.
        text: a text in UTF-8; what special tokens are called stays text.
        chunk_size: tokens of a chunk of the text; what is left at its end is not used.
        max_chunks: most chunks of the text; None for all.
        conversations: computed with the adapter that their media ask for.
    """

    datasets: tuple[str, ...]
    text: Path | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE
    max_chunks: int | None = None
    conversations: Sequence[Conversation] = ()


def read_conversations(path: Path) -> list[Conversation]:
    """Conversations of a manifest of JSON lines.

    ``{"image": FILE, "audio": FILE, "prompt": WORDS, "answer": WORDS}``: each can be left out, but
    a prompt or a medium must be there.  Several files are ``"images"`` and ``"audios"``; paths are
    relative to the manifest.  ``"system"`` and ``"tools"`` (JSON text of a list) make a system
    message.

    Raises:
        InputError: it cannot be read, a line is wrong, or there is none.
    """
    found = [_conversation(line) for line in read_json_lines(path)]
    if not found:
        raise InputError(f"{path}: no conversation in it")
    return found


def _conversation(line: JsonLine) -> Conversation:
    has_images, has_audios = ({name, f"{name}s"} & line.values.keys() for name in _MEDIA)
    has_prompt = "prompt" in line.values
    if not (has_images or has_audios or has_prompt):
        raise InputError(f"{line.where}: must have 'prompt', 'image' or 'audio'")
    conversation = Conversation(
        name=line.where,
        images=line.take_paths("image") if has_images else (),
        audios=line.take_paths("audio") if has_audios else (),
        prompt=line.take("prompt") if has_prompt else "",
        answer=line.take("answer") if "answer" in line.values else None,
        system=line.take("system") if "system" in line.values else "",
        tools=line.take("tools") if "tools" in line.values else None,
    )
    line.finish()
    return conversation


_MEDIA: Final = ("image", "audio")


def conversations_about(folder: Path, kind: MediaKind, prompt: str) -> list[Conversation]:
    """One question about every picture, or every clip, in a folder and below it.

    Files of other kinds are not looked at, so that texts may lie beside the media.

    Raises:
        InputError: the folder cannot be read, or has no such file.
    """
    found = [str(path) for path in _files(folder) if _kind_of(path) == kind]
    if not found:
        raise InputError(f"{folder}: no {'picture' if kind == 'image' else 'clip'} in this folder")
    if kind == "image":
        return [Conversation(path, images=(path,), prompt=prompt) for path in found]
    return [Conversation(path, audios=(path,), prompt=prompt) for path in found]


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def _kind_of(path: Path) -> MediaKind | None:
    try:
        with path.open("rb") as stream:
            return media_kind(stream.read(HEAD_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
