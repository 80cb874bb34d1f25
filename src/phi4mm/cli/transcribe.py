"""``phi4mm transcribe``: recordings of any length to text, JSON or subtitles."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from phi4mm.cli.main import EXIT_BAD_INPUT
from phi4mm.cli.options import add_model_options, open_model
from phi4mm.errors import Cancelled, InputError, Phi4MMError

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM
    from phi4mm.engine.event import Event
    from phi4mm.engine.parameters import SamplingParams
    from phi4mm.media.audio import AudioStream
    from phi4mm.prompt.message import Message
    from phi4mm.transcribe.job import Job
    from phi4mm.transcribe.segment import Note
    from phi4mm.transcribe.task import Task
    from phi4mm.transcribe.transcriber import Transcriber

_STDIN = Path("/dev/stdin")  # a pipe is spooled to disk by whoever opens it
_EPILOG = """\
A recording is cut at its pauses into pieces of at most 30 seconds; silence and steady noise are
left out. Files whose transcript exists in the output folder are skipped, so a list can be resumed.

examples:
  phi4mm transcribe talk.mp3
  phi4mm transcribe talk.mp3 --format srt > talk.srt
  phi4mm transcribe interviews/ memo.m4a --format json -o transcripts
  phi4mm transcribe talk.mp3 --task translate --language de
  ffmpeg -i talk.mkv -f wav - | phi4mm transcribe -
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "transcribe",
        help="turn recordings of any length into text or subtitles",
        description="Transcribe or translate speech. The text goes to standard output as it is "
        "heard, or with -o into one file for each recording.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "inputs", metavar="FILE", nargs="+", help="recording, folder of recordings, or - for stdin"
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "srt", "vtt"),
        default="text",
        help="default: text, one line for each segment; json is one object for each recording",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="folder for the transcripts"
    )
    parser.add_argument(
        "--task",
        choices=("transcribe", "translate"),
        default="transcribe",
        help="default: transcribe, in the language spoken",
    )
    parser.add_argument(
        "--language", metavar="L", help="language to translate to, such as de (default: en)"
    )
    parser.add_argument(
        "--max-piece",
        metavar="S",
        type=float,
        default=30.0,
        help="longest piece the model hears at once, in seconds (default: 30)",
    )
    parser.add_argument(
        "--force", action="store_true", help="transcribe again what was transcribed before"
    )
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Transcribe everything; what failed is told at the end, and makes the exit code 2."""
    from phi4mm.modality import mode_of
    from phi4mm.transcribe.formats import SUFFIXES
    from phi4mm.transcribe.job import plan_jobs
    from phi4mm.transcribe.piece import PieceParams
    from phi4mm.transcribe.transcriber import Transcriber

    task, pieces = _task(args), PieceParams(max_s=args.max_piece)
    jobs = plan_jobs(args.inputs, args.output, SUFFIXES[args.format])
    if args.format in ("srt", "vtt") and len(jobs) > 1 and args.output is None:
        raise InputError(
            f"{len(jobs)} recordings make {len(jobs)} {args.format} files: give -o DIR"
        )
    mode = mode_of(n_images=0, n_audios=1)
    with open_model(args, keep_embeddings=False, mode=mode) as model:  # no piece comes twice
        transcriber = Transcriber(_interruptible(model), task, pieces)
        work = _Work(model, transcriber, task, args.format, show_names=len(jobs) > 1)
        failures = _run_all(jobs, work, force=args.force)
    if failures:
        _say(f"{len(failures)} of {len(jobs)} recordings failed:")
        for error in failures:
            _say(f"  {error}")
    return EXIT_BAD_INPUT if failures else 0


def _task(args: argparse.Namespace) -> Task:
    from phi4mm.transcribe.task import TRANSCRIBE, translate_to

    if args.task == "translate":
        return translate_to(args.language or "en")
    if args.language is not None:
        raise InputError(
            f"--language {args.language}: the model finds the spoken language itself; to get "
            "another one give --task translate too"
        )
    return TRANSCRIBE


def _interruptible(
    model: Phi4MM,
) -> Callable[[Sequence[Message], SamplingParams], Generator[Event, None, None]]:
    from phi4mm.cli.stream import interruptible

    return lambda messages, sampling: interruptible(
        model.generate(messages, sampling), model.cancel
    )


def _run_all(jobs: Sequence[Job], work: _Work, *, force: bool) -> list[Phi4MMError]:
    failures: list[Phi4MMError] = []
    for job in jobs:
        if job.is_done and not force:
            _say(f"{job.name}: {job.output} exists, skipped (--force does it again)")
            continue
        try:
            work.do(job)
        except Cancelled:
            raise
        except Phi4MMError as error:
            failures.append(error)
    return failures


@dataclass(frozen=True, slots=True)
class _Work:
    """What is done to each recording."""

    model: Phi4MM
    transcriber: Transcriber
    task: Task
    format: str
    show_names: bool

    def do(self, job: Job) -> None:
        """Transcribe one recording into its file, or onto standard output."""
        source = _STDIN if job.source is None else job.source
        with _opened(job.output) as out, self.model.open_audio(source) as audio:
            if job.output is None and self.show_names and self.format == "text":
                out.write(f"==> {job.name} <==\n")
            is_shown = sys.stderr.isatty() and not out.isatty()
            with _progress(job.name, audio.duration_s, is_shown=is_shown) as progress:
                self._write(job.name, audio, out, progress)

    def _write(
        self, name: str, audio: AudioStream, out: TextIO, progress: Callable[[float], None]
    ) -> None:
        from phi4mm.transcribe.formats import FORMATS
        from phi4mm.transcribe.heard import Heard

        began, notes, n_segments = time.perf_counter(), Counter["Note"](), 0
        heard, format_ = Heard(audio), FORMATS[self.format]()
        out.write(format_.begin())
        with closing(self.transcriber.segments(heard.audio)) as segments:
            for segment in segments:
                out.write(format_.add(segment))
                out.flush()
                n_segments += 1
                notes.update([segment.note] if segment.note else [])
                progress(segment.end_s)
        out.write(format_.end(name, self.task.name, heard.seconds))
        out.flush()
        _say(_summary(name, heard.seconds, time.perf_counter() - began, n_segments, notes))


def _summary(
    name: str, heard_s: float, took_s: float, n_segments: int, notes: Counter[Note]
) -> str:
    from phi4mm.transcribe.segment import NOTES

    rtf = took_s / heard_s if heard_s else 0.0
    extra = "".join(f"; {n} x {NOTES[note]}" for note, n in notes.items())
    return (
        f"{name}: {heard_s:.1f} s in {took_s:.1f} s (RTF {rtf:.2f}), {n_segments} segments{extra}"
    )


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """The file to write; it gets its name when it is complete."""
    if path is None:
        yield sys.stdout
        return
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = unfinished.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _progress(
    name: str, duration_s: float | None, *, is_shown: bool
) -> Iterator[Callable[[float], None]]:
    """A bar on stderr with the real-time factor, as a function that takes seconds done."""
    if not is_shown:
        yield lambda done_s: None
        return
    from rich import progress as bars
    from rich.console import Console

    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:.0f} s{task.fields[rtf]}"),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    ) as bar:
        task = bar.add_task(name, total=duration_s, rtf="")
        began = time.perf_counter()

        def update(done_s: float) -> None:
            rtf = (time.perf_counter() - began) / done_s
            bar.update(task, completed=done_s, rtf=f" · RTF {rtf:.2f}")

        yield update


def _say(line: str) -> None:
    print(f"phi4mm: {line}", file=sys.stderr)
