"""Joins held-out clips to one long recording, and compares how it is heard with the clips alone.

Between the clips lie pauses of 0.2 to 3 s, silence and noise in turn.  For each sampling rate and
channel count the recording is transcribed, then each clip by itself, and the last line says how far
word errors, times and memory are apart.

    python -m evals.make held-out --n 300
    python scripts/long_speech.py held-out -o long.jsonl
    python scripts/long_speech.py held-out -o long.jsonl --minutes 2 --forms 16000x1 8000x2
    python scripts/long_speech.py held-out --edges-only --noise-db -40 -30 -20

Each form is a line of the output file, and is not done again when the script is started again.  No
form is begun that would end after ``--budget`` seconds: start the script again for what is left.
``--edges-only`` asks no model: it cuts the recording over white noise of each strength.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from phi4mm import Phi4MM
from phi4mm.cli.options import sample_bundle
from phi4mm.evals.word_errors import WordErrors, WordScorer
from phi4mm.transcribe.piece import Piece, PieceParams, cut_pieces
from phi4mm.transcribe.segment import Segment, join_texts

Samples = npt.NDArray[np.float32]
Span = tuple[float, float]

RATE = 16000
PAUSES_S = (0.2, 3.0)
NOISES_DB = (-65.0, -45.0)
FORMS = tuple(f"{rate}x{n}" for rate in (16000, 8000, 11025, 22050, 44100, 48000) for n in (1, 2))
# A pause within a clip: what is this much quieter than its loudest tenth of a second, for so long.
_QUIET_DB, _QUIET_S = -30.0, 0.15
_FRAME = RATE // 100
# What is asked for: points of word error rate, seconds, share of memory.
MOST_POINTS, MOST_OFF_S, MOST_GROWTH = 1.0, 0.3, 0.1
_LONGEST_LOOP, _COPIES = 8, 4  # words that are repeated, and how often is too often


@dataclass(frozen=True)
class Clip:
    """A held-out clip: mono sound at ``RATE``, and its words."""

    samples: Samples
    text: str


@dataclass(frozen=True)
class Talk:
    """Clips in a row.

    Attributes:
        samples: mono sound at ``RATE``.
        clips: in order.
        pauses: (start, end) in seconds, those within clips too.
    """

    samples: Samples
    clips: list[Clip]
    pauses: list[Span]

    def off(self, second: float) -> float:
        """From a moment to the nearest pause."""
        return min(max(start - second, second - end, 0.0) for start, end in self.pauses)


def read_clips(folder: Path) -> Iterator[Clip]:
    """The clips of ``speech.jsonl``, again from the first after the last."""
    lines = [json.loads(line) for line in (folder / "speech.jsonl").read_text().splitlines()]
    while True:
        for line in lines:
            samples, rate = soundfile.read(folder / line["audio"], dtype="float32")
            assert rate == RATE
            yield Clip(samples, line["text"])


def make_talk(clips: Iterable[Clip], minutes: float, seed: int) -> Talk:
    """Join clips until the time is over."""
    random = np.random.default_rng(seed)
    parts, used, pauses, n = list[Samples](), list[Clip](), list[Span](), 0
    for clip in clips:
        pause = np.zeros(round(random.uniform(*PAUSES_S) * RATE), np.float32)
        if len(used) % 2:
            strength = 10 ** (random.uniform(*NOISES_DB) / 20)
            pause += (strength * random.standard_normal(len(pause))).astype(np.float32)
        start = n / RATE
        pauses.append((start, start + len(pause) / RATE))
        parts.append(pause)
        n += len(pause)
        if n / RATE > 60 * minutes:
            break
        pauses += [(a + n / RATE, b + n / RATE) for a, b in quiet_spans(clip.samples)]
        parts.append(clip.samples)
        used.append(clip)
        n += len(clip.samples)
    return Talk(np.concatenate(parts), used, merged(pauses))


def quiet_spans(samples: Samples) -> list[Span]:
    """Stretches of a clean clip in which nothing is said, in seconds."""
    n = len(samples) // _FRAME
    power = np.square(samples[: n * _FRAME].reshape(n, _FRAME)).mean(axis=1)
    power = np.convolve(power, np.full(3, 1 / 3), mode="same")
    loudest = np.convolve(power, np.full(10, 0.1), mode="same").max()
    quiet = power < loudest * 10 ** (_QUIET_DB / 10)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], quiet.astype(np.int8), [0]])))
    spans = [(a / 100, b / 100) for a, b in edges.reshape(-1, 2).tolist()]
    # silence at the ends joins the pauses around the clip, however short it is
    return [s for s in spans if s[1] - s[0] >= _QUIET_S or s[0] == 0 or s[1] >= n / 100]


def merged(spans: list[Span]) -> list[Span]:
    """Spans in order, those that touch made one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1] + 0.02:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def in_form(samples: Samples, rate: int, n_channels: int) -> Samples:
    """Sound at another rate; its channels are of different strength."""
    if rate != RATE:
        samples = soxr.resample(samples, RATE, rate)
    if n_channels == 1:
        return samples
    return np.stack([samples * (1 - 0.5 * i) for i in range(n_channels)], axis=1)


def rss_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def normalised(text: str) -> str:
    """Words alone, for counting."""
    return " ".join(re.findall(r"[\w']+", text.casefold()))


def longest_loop(text: str) -> int:
    """The most copies in a row of up to eight words."""
    words, most = normalised(text).split(), 1
    for period in range(1, _LONGEST_LOOP + 1):
        run = 0
        for old, new in zip(words, words[period:], strict=False):
            run = run + 1 if old == new else 0
            most = max(most, 1 + run // period)
    return most


@dataclass(frozen=True)
class Heard:
    """A long recording as it was heard.

    Attributes:
        segments: in the order they came.
        memory: (seconds of the recording, MiB) after each.
        seconds: of work.
    """

    segments: list[Segment]
    memory: list[tuple[float, float]]
    seconds: float

    @property
    def growth(self) -> float:
        """Most memory after a tenth of the recording, relative to the memory then."""
        after = [mib for s, mib in self.memory if s >= 0.1 * self.memory[-1][0]]
        return max(after) / after[0] - 1


def hear(model: Phi4MM, path: Path, params: PieceParams) -> Heard:
    """Transcribe a file."""
    began, segments, memory = time.monotonic(), list[Segment](), list[tuple[float, float]]()
    for segment in model.transcribe_segments(path, pieces=params):
        segments.append(segment)
        memory.append((segment.end_s, rss_mib()))
    return Heard(segments, memory, time.monotonic() - began)


def measure(
    model: Phi4MM, talk: Talk, form: str, params: PieceParams, folder: Path
) -> dict[str, Any]:
    """Hear the recording in one form, and its clips."""
    rate, n_channels = map(int, form.split("x"))
    path = folder / "talk.flac"
    soundfile.write(path, np.clip(in_form(talk.samples, rate, n_channels), -1, 1), rate)
    heard, scorer = hear(model, path, params), WordScorer("none")
    alone = WordErrors.total(
        scorer.count(
            normalised(clip.text),
            normalised(model.transcribe((in_form(clip.samples, rate, n_channels), rate))),
            "en",
        )
        for clip in talk.clips
    )
    reference = normalised(" ".join(clip.text for clip in talk.clips))
    text = join_texts(segment.text for segment in heard.segments)
    whole = scorer.count(reference, normalised(text), "en")
    spans = [(s.start_s, s.end_s) for s in heard.segments]
    return {
        "form": form,
        "minutes": round(len(talk.samples) / RATE / 60, 2),
        "n_clips": len(talk.clips),
        "n_words": whole.n_words,
        "n_segments": len(spans),
        "wer_alone": round(100 * alone.rate, 2),
        "wer_joined": round(100 * whole.rate, 2),
        "most_off_s": round(max(talk.off(at) for span in spans for at in span), 3),
        "in_order": all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans)),
        "most_copies": longest_loop(text),
        "notes": dict(Counter(s.note for s in heard.segments if s.note)),
        "memory_growth": round(heard.growth, 3),
        "rtf": round(heard.seconds / (len(talk.samples) / RATE), 3),
    }


def complaints(found: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    faults = []
    if (points := found["wer_joined"] - found["wer_alone"]) > MOST_POINTS:
        faults.append(f"{points:.2f} points of word errors more than the clips alone")
    if found["most_off_s"] > MOST_OFF_S:
        faults.append(f"an edge is {found['most_off_s']} s off the nearest pause")
    if not found["in_order"]:
        faults.append("segments are not in order")
    if found["most_copies"] >= _COPIES:
        faults.append(f"{found['most_copies']} copies of the same words in a row")
    if found["memory_growth"] > MOST_GROWTH:
        faults.append(f"memory grew by {found['memory_growth']:.0%}")
    return [f"{found['form']}: {fault}" for fault in faults]


def unheard(talk: Talk, pieces: list[Piece]) -> float:
    """Seconds outside of all pauses that no piece has."""
    speech = [(a[1], b[0]) for a, b in pairwise(talk.pauses)]
    return sum(
        end - start - sum(max(0, min(end, p.end_s) - max(start, p.start_s)) for p in pieces)
        for start, end in speech
    )


def show_edges(model: Phi4MM, talk: Talk, forms: list[str], noises_db: list[float]) -> None:
    """Where pieces begin and end, over white noise of each strength."""
    random = np.random.default_rng(0)
    noise = random.standard_normal(len(talk.samples)).astype(np.float32)
    for db in noises_db:
        noisy = talk.samples + np.float32(10 ** (db / 20)) * noise
        for form in forms:
            rate, n_channels = map(int, form.split("x"))
            with model.open_audio((in_form(noisy, rate, n_channels), rate)) as audio:
                pieces = list(cut_pieces(audio))
            off = sorted(talk.off(at) for piece in pieces for at in (piece.start_s, piece.end_s))
            found = {
                "noise_db": db,
                "form": form,
                "pieces": len(pieces),
                "off_median_s": round(off[len(off) // 2], 3),
                "off_99_percent_s": round(off[int(0.99 * len(off))], 3),
                "most_off_s": round(off[-1], 3),
                "too_far": sum(o > MOST_OFF_S for o in off),
                "unheard_s": round(unheard(talk, pieces), 2),
                "cut_short": sum(piece.is_cut_short for piece in pieces),
            }
            print(json.dumps(found), flush=True)


def main() -> int:
    """Measure each form that is not in the output file yet."""
    args = parse_args()
    talk = make_talk(read_clips(args.held_out), args.minutes, args.seed)
    lines = args.output.read_text().splitlines() if args.output.exists() else []
    done = [json.loads(line) for line in lines]
    with (
        Phi4MM(args.model, n_threads=args.threads) as model,
        tempfile.TemporaryDirectory() as folder,
    ):
        if args.edges_only:
            show_edges(model, talk, args.forms, args.noise_db)
            return 0
        began, longest = time.monotonic(), 0.0
        for form in args.forms:
            if any(found["form"] == form for found in done):
                continue
            form_began = time.monotonic()
            if longest and form_began + longest > began + args.budget:
                print(f"{form} and what follows are left: start again for them", file=sys.stderr)
                break
            params = PieceParams(max_s=args.max_piece)
            found = measure(model, talk, form, params, Path(folder))
            longest = max(longest, time.monotonic() - form_began)
            print(json.dumps(found), flush=True)
            done.append(found)
            with args.output.open("a") as file:
                file.write(json.dumps(found) + "\n")
    faults = [fault for found in done for fault in complaints(found)]
    print(*faults, sep="\n", file=sys.stderr)
    print(f"{len(done)} forms, {len(faults)} faults")
    return int(bool(faults))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("held_out", type=Path, help="folder with speech.jsonl and its clips")
    parser.add_argument("-m", "--model", type=Path, default=sample_bundle())
    parser.add_argument("-o", "--output", type=Path, default=Path("long_speech.jsonl"))
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--budget", type=float, default=290, metavar="S")
    parser.add_argument("--max-piece", type=float, default=PieceParams().max_s, metavar="S")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", nargs="+", default=list(FORMS), help="RATExCHANNELS")
    parser.add_argument("--edges-only", action="store_true", help="cut, and ask no model")
    parser.add_argument("--noise-db", type=float, nargs="+", default=[-90, -40, -30, -20])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
