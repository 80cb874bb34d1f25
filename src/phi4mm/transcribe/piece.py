"""Long sound to pieces a model can hear at once, cut at pauses, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from phi4mm.errors import SettingError
from phi4mm.media.audio import AudioStream, Samples
from phi4mm.transcribe.level import FRAME_S, LevelMeter, Levels
from phi4mm.transcribe.speech import MIN_PAUSE_S, Run, find_speech

MAX_HEARD_S = 40.0
"""What the model hears as one attention chunk, in seconds."""


def _frames(seconds: float) -> int:
    return round(seconds / FRAME_S)


_EDGE = _frames(0.1)  # words fade in and out below what is taken for speech
_PAD = _frames(0.3)  # heard before and after the speech, as far as the pause reaches
_HALF_OVERLAP = _frames(0.5)  # heard on both sides of a place where there is no pause
_AHEAD = _frames(10)  # background looked at beyond the longest piece
_HISTORY = _frames(20)  # background remembered
_QUIET = _frames(0.2)  # a cut without a pause is made in the quietest stretch of this length
_PAUSE = _frames(MIN_PAUSE_S)


@dataclass(frozen=True, slots=True)
class PieceParams:
    """Where to cut.

    The longer a piece has become, the shorter a pause ends it: ``long_pause_s`` at its beginning,
    0.2 s towards ``max_s``.  A piece that finds no such pause ends at the longest one it has, and
    without any at its quietest place near the end.

    Attributes:
        max_s: longest piece in seconds, 2 to 38.
        long_pause_s: a pause that always ends a piece.
    """

    max_s: float = 30.0
    long_pause_s: float = 1.0

    @property
    def max_heard_s(self) -> float:
        """Longest sound of a piece: some of what is around its speech is heard too."""
        return self.max_s + 2 * _HALF_OVERLAP * FRAME_S

    def __post_init__(self) -> None:
        longest = MAX_HEARD_S - 2
        if not 2 <= self.max_s <= longest:
            raise SettingError("max_s", f"is {self.max_s}: it must be from 2 to {longest:g} s")
        if not self.long_pause_s >= MIN_PAUSE_S:
            raise SettingError(
                "long_pause_s", f"is {self.long_pause_s}: it must be at least {MIN_PAUSE_S} s"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Speech between two pauses.

    Attributes:
        start_s: where its speech begins in the recording.
        end_s: where it ends.
        samples: the sound, a little longer than the speech.
        rate: of the samples in Hz.
        is_cut_short: it ends within speech; the next piece repeats its last second.
    """

    start_s: float
    end_s: float
    samples: Samples
    rate: int
    is_cut_short: bool = False


def cut_pieces(audio: AudioStream, params: PieceParams | None = None) -> Iterator[Piece]:
    """The speech of a recording, piece by piece; silence and noise between are left out.

    Holds the longest piece, some background around it, and one decoded block.

    Raises:
        MediaError: the recording is damaged.
    """
    params = params or PieceParams()
    window = _Window(audio)
    span = _frames(params.max_s) + _AHEAD
    position, is_continued = 0, False
    while True:
        window.fill(position + span)
        runs = window.speech(position, position + span)
        if not runs:
            seen = min(window.end, position + span)
            if window.is_at_end and seen == window.end:
                return
            # speech that has just begun may still be too short to count
            position, is_continued = seen - _PAUSE, False
            window.forget(position)
            continue
        start = position if is_continued else runs[0].start
        if start > position:  # look as far ahead from there
            position = start
            window.forget(position)
            continue
        end, resume = _choose_end(runs, start, window, params)
        yield window.piece(start, end, resume, is_continued)
        is_continued = resume is None
        position = end if is_continued else end + _PAUSE
        window.forget(position)


def _choose_end(
    runs: Sequence[Run], start: int, window: _Window, params: PieceParams
) -> tuple[int, int | None]:
    """The frame where a piece from ``start`` ends, and the one where the pause after it does.

    The second is None where there is no pause.
    """
    longest = _frames(params.max_s)
    best: tuple[int, int] | None = None
    for run, following in pairwise(runs):
        length, pause = run.end - start, following.start - run.end
        if length > longest:
            break
        if pause * FRAME_S >= _ending_pause_s(length / longest, params):
            return run.end, following.start
        if best is None or pause >= best[1] - best[0]:
            best = run.end, following.start
    if runs[-1].end - start <= longest:
        return runs[-1].end, window.end + 2 * _PAD
    if best is not None:
        return best
    return window.quietest(start + longest * 6 // 10, start + longest), None


def _ending_pause_s(fill: float, params: PieceParams) -> float:
    """The shortest pause that ends a piece filled to this share."""
    return max(MIN_PAUSE_S, params.long_pause_s * (1 - fill))


class _Window:
    """The part of a recording that is being looked at; frames count from its beginning."""

    def __init__(self, audio: AudioStream) -> None:
        self._blocks = audio.blocks
        self._meter = LevelMeter(audio.rate)
        self._rate = audio.rate
        self._hop = round(audio.rate * FRAME_S)
        self._samples = np.empty(0, np.float32)
        self._first_sample = 0
        self._levels = self._meter.nothing()
        self._first_level = 0
        self._previous_end = -2 * _PAD  # nothing is said before the beginning
        self.is_at_end = False

    @property
    def end(self) -> int:
        """Frames measured so far."""
        return self._first_level + len(self._levels)

    def is_known(self, frame: int) -> bool:
        return self.is_at_end or self.end >= frame

    def fill(self, frame: int) -> None:
        """Read on until ``frame`` is measured or the recording ends."""
        while not self.is_known(frame):
            block = next(self._blocks, None)
            if block is None:
                self.is_at_end = True
                self._levels += self._meter.flush()
            else:
                self._samples = np.concatenate([self._samples, block])
                self._levels += self._meter.feed(block)

    def forget(self, frame: int) -> None:
        """Drop what no piece from ``frame`` on needs."""
        first = max(0, frame - max(_PAD, _HALF_OVERLAP)) * self._hop
        if first > self._first_sample:
            self._samples = self._samples[first - self._first_sample :].copy()
            self._first_sample = first
        first = max(self._first_level, frame - _HISTORY)
        self._levels = self._levels[first - self._first_level :]
        self._first_level = first

    def speech(self, start: int, stop: int) -> list[Run]:
        """Runs of speech from ``start`` on, judged by the background up to ``stop``.

        As more background is known, a run may turn out to last longer than it seemed: of one that
        began before ``start``, the piece before has heard what is shorter than a pause.
        """
        first = self._first_level
        found = (
            Run(first + run.start, first + run.end)
            for run in find_speech(self._levels[: stop - first])
        )
        return [
            Run(max(start, run.start), run.end)
            for run in found
            if run.end > start + (_PAUSE if run.start < start else 0)
        ]

    def quietest(self, start: int, stop: int) -> int:
        """The middle of the quietest stretch between two frames."""
        first = self._first_level
        return first + _quietest(self._levels, start - first, stop - first)

    def piece(self, start: int, end: int, resume: int | None, is_continued: bool) -> Piece:
        """The piece whose speech lies between ``start`` and ``end`` and goes on at ``resume``."""
        before = start - self._previous_end
        after = 0 if resume is None else resume - end
        self._previous_end = end
        samples = self._between(
            start - (_HALF_OVERLAP if is_continued else min(_PAD, before // 2)),
            end + (_HALF_OVERLAP if resume is None else min(_PAD, after // 2)),
        )
        start = max(0, start - min(_EDGE, before // 2))
        end = min(self.end, end + min(_EDGE, after // 2))
        return Piece(start * FRAME_S, end * FRAME_S, samples, self._rate, resume is None)

    def _between(self, start: int, stop: int) -> Samples:
        first, last = (max(0, f * self._hop - self._first_sample) for f in (start, stop))
        return self._samples[first:last]


def split_piece(piece: Piece) -> tuple[Piece, Piece]:
    """Two overlapping halves of a piece, cut at the quietest place in its middle third."""
    meter, hop = LevelMeter(piece.rate), round(piece.rate * FRAME_S)
    levels = meter.feed(piece.samples) + meter.flush()
    n = len(levels)
    middle = _quietest(levels, n // 3, max(n * 2 // 3, n // 3 + _QUIET))
    # the sound begins before the speech by the same padding, more or less, as it ends after it
    pad = (n - _frames(piece.end_s - piece.start_s)) // 2
    middle_s = piece.start_s + (middle - pad) * FRAME_S
    left, right = (middle + _HALF_OVERLAP) * hop, (middle - _HALF_OVERLAP) * hop
    return (
        Piece(piece.start_s, middle_s, piece.samples[:left], piece.rate, is_cut_short=True),
        replace(piece, start_s=middle_s, samples=piece.samples[max(0, right) :]),
    )


def _quietest(levels: Levels, start: int, stop: int) -> int:
    """The middle of the quietest stretch between two frames."""
    power = np.convolve(10 ** (levels.level[start:stop] / 10), np.ones(_QUIET), mode="valid")
    return start + int(power.argmin()) + _QUIET // 2
