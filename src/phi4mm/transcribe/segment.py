"""What a transcription is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Note = Literal["repetition", "refusal", "length"]

NOTES: dict[Note, str] = {
    "repetition": "the model repeated itself; one copy is kept",
    "refusal": "the model did not transcribe; its words are left out",
    "length": "the answer was cut at the most that can be said in that time",
}

_NO_BLANKS = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")


@dataclass(frozen=True, slots=True)
class Segment:
    """What was said between two pauses.

    Attributes:
        start_s: where in the recording, in seconds.
        end_s: where it ends.
        text: the words; may be empty.
        note: what a guard did, a key of ``NOTES``; None for nothing.
    """

    start_s: float
    end_s: float
    text: str
    note: Note | None = None


def join_texts(texts: Iterable[str]) -> str:
    """Texts in a row, with blanks between them where the script has blanks."""
    joined = ""
    for text in filter(None, texts):
        no_blank = not joined or _NO_BLANKS.match(joined[-1]) or _NO_BLANKS.match(text[0])
        joined += text if no_blank else f" {text}"
    return joined
