"""What a model may say instead of a transcript, and how it is noticed.

Two things: the same words over and over, and words about the sound instead of the sound's.
"""

from __future__ import annotations

import re

_MAX_PERIOD = 40  # tokens
_MIN_REPEATED = 24
_MIN_COPIES = 4

_SOUND = r"(?:audio(?: clip| file| recording)?|clip|recording|speech|speaker)"
_LEAD_IN = re.compile(
    rf"(?:(?:sure|certainly|of course|okay)[,!.]?\s+)?"
    rf"(?:(?:here is|here's|this is)\s+(?:the|a)\s+(?:\w+\s+)?(?:transcript(?:ion)?|translation)"
    rf"(?:\s+of\s+the\s+{_SOUND})?"
    rf"|the\s+{_SOUND}\s+(?:says|contains|transcribes to)"
    rf"|(?:the\s+)?transcript(?:ion)?(?:\s+of\s+the\s+{_SOUND})?(?:\s+is)?)\s*:\s*",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    rf"(?:i'?m sorry|i am sorry|sorry|unfortunately|as an ai)\b[^.!?]*"
    rf"\b(?:can't|cannot|can not|unable|don't have|not able)\b[^.!?]*"
    rf"\b(?:listen|hear|transcribe|process|access|{_SOUND})\b",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "«": "»"}


class RepeatWatch:
    """Notices that a sequence has begun to repeat itself.

    A repeat is at least four copies of up to 40 tokens, and 24 tokens or more in all: "no, no, no"
    is speech.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._runs = [0] * (_MAX_PERIOD + 1)  # by period: how many tokens equal the one so far back

    def push(self, id_: int) -> int | None:
        """Take the next token.

        Returns:
            Once it repeats, how many tokens at the end are copies of what precedes them.
        """
        self._ids.append(id_)
        for period in range(1, min(_MAX_PERIOD, len(self._ids) - 1) + 1):
            run = self._runs[period] + 1 if self._ids[-1 - period] == id_ else 0
            self._runs[period] = run
            if run >= max(_MIN_REPEATED, (_MIN_COPIES - 1) * period):
                return run
        return None


def strip_lead_in(text: str) -> str:
    """The transcript without "Here is the transcription:" and the quotation marks after it."""
    match = _LEAD_IN.match(text)
    if match is None:
        return text
    rest = text[match.end() :].strip()
    if len(rest) > 1 and _QUOTES.get(rest[0]) == rest[-1]:
        rest = rest[1:-1].strip()
    return rest


def is_refusal(text: str) -> bool:
    """Whether the answer is an excuse for not transcribing, not a transcript."""
    return _REFUSAL.match(text) is not None
