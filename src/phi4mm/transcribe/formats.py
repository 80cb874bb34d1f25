"""Output formats, written as the segments come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from phi4mm.transcribe.segment import Segment, join_texts
from phi4mm.transcribe.subtitle import clock, cues


class Format(Protocol):
    """Turns segments into text: ``begin`` once, ``add`` for each, ``end`` once."""

    def begin(self) -> str:
        """What stands before all segments."""
        ...

    def add(self, segment: Segment) -> str:
        """What the next segment adds."""
        ...

    def end(self, name: str, task: str, duration_s: float) -> str:
        """What stands after all segments."""
        ...


class TextFormat:
    """One line for each segment that has words."""

    def begin(self) -> str:
        """Nothing."""
        return ""

    def add(self, segment: Segment) -> str:
        """The words."""
        return f"{segment.text}\n" if segment.text else ""

    def end(self, name: str, task: str, duration_s: float) -> str:
        """Nothing."""
        return ""


class JsonFormat:
    """One object on one line, with all segments."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def begin(self) -> str:
        """Nothing."""
        return ""

    def add(self, segment: Segment) -> str:
        """Nothing yet."""
        self._segments.append(segment)
        return ""

    def end(self, name: str, task: str, duration_s: float) -> str:
        """The object."""
        return json.dumps(
            {
                "file": name,
                "task": task,
                "duration": round(duration_s, 3),
                "text": join_texts(segment.text for segment in self._segments),
                "segments": [_object(segment) for segment in self._segments],
            },
            ensure_ascii=False,
        ) + "\n"  # fmt: skip


def _object(segment: Segment) -> dict[str, str | float]:
    times = {"start": round(segment.start_s, 3), "end": round(segment.end_s, 3)}
    note = {} if segment.note is None else {"note": segment.note}
    return {**times, "text": segment.text, **note}


class SubRipFormat:
    """SRT: numbered cues."""

    def __init__(self) -> None:
        self._number = 0

    def begin(self) -> str:
        """Nothing."""
        return ""

    def add(self, segment: Segment) -> str:
        """The segment's cues."""
        text = ""
        for cue in cues(segment):
            self._number += 1
            times = f"{clock(cue.start_s, ',')} --> {clock(cue.end_s, ',')}"
            text += f"{self._number}\n{times}\n{_lines(cue.lines)}\n\n"
        return text

    def end(self, name: str, task: str, duration_s: float) -> str:
        """Nothing."""
        return ""


class WebVttFormat:
    """WebVTT: a head, and cues whose text is escaped."""

    def begin(self) -> str:
        """The head."""
        return "WEBVTT\n\n"

    def add(self, segment: Segment) -> str:
        """The segment's cues."""
        text = ""
        for cue in cues(segment):
            times = f"{clock(cue.start_s, '.')} --> {clock(cue.end_s, '.')}"
            words = _lines(cue.lines).replace("&", "&amp;").replace("<", "&lt;")
            text += f"{times}\n{words.replace('>', '&gt;')}\n\n"
        return text

    def end(self, name: str, task: str, duration_s: float) -> str:
        """Nothing."""
        return ""


def _lines(lines: Sequence[str]) -> str:
    """Lines of a cue; an arrow would end SRT's."""
    return "\n".join(lines).replace("-->", "->")


FORMATS: dict[str, type[Format]] = {
    "text": TextFormat,
    "json": JsonFormat,
    "srt": SubRipFormat,
    "vtt": WebVttFormat,
}
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
