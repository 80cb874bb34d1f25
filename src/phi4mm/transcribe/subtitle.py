"""Segments to cues that can be read, and times as SRT and WebVTT write them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from phi4mm.transcribe.segment import Segment

# Two lines of 42 characters for at most 7 seconds, as broadcasters do.
_LINE, _CUE, _MAX_CUE_S = 42, 84, 7.0


@dataclass(frozen=True, slots=True)
class Cue:
    """What stands on the screen for a while: one or two lines."""

    start_s: float
    end_s: float
    lines: tuple[str, ...]


def cues(segment: Segment) -> Iterator[Cue]:
    """A segment cut into readable cues; time is shared out by characters."""
    parts = _parts(segment)
    total = sum(map(len, parts))
    span, n_before = segment.end_s - segment.start_s, 0
    for part in parts:
        start = segment.start_s + span * n_before / total
        n_before += len(part)
        end = segment.start_s + span * n_before / total
        yield Cue(start, end, tuple(textwrap.wrap(part, max(_LINE, -(-len(part) // 2) + 8))))


def _parts(segment: Segment) -> list[str]:
    n_parts = max(
        -(-len(segment.text) // _CUE), int((segment.end_s - segment.start_s) / _MAX_CUE_S) + 1
    )
    width = max(_LINE // 2, -(-len(segment.text) // n_parts) + 8)
    return textwrap.wrap(segment.text, min(_CUE, width))


def clock(seconds: float, decimal: str) -> str:
    """``01:02:03,456``, with this sign before the milliseconds."""
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{decimal}{milliseconds % 1000:03}"
