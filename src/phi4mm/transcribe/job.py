"""Which files to transcribe, and where their transcripts go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phi4mm.errors import InputError

STANDARD_INPUT = "-"
# In a folder, files are taken by name; a file that is named itself is judged by its bytes.
SOUND_SUFFIXES = frozenset(
    (
        *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au"),
        *(".caf", ".w64", ".rf64", ".m4a", ".mp4", ".aac", ".webm", ".mkv", ".mka", ".mov"),
        *(".avi", ".wma", ".amr", ".3gp"),
    )
)


@dataclass(frozen=True, slots=True)
class Job:
    """One recording.

    Attributes:
        name: for messages.
        source: its path; None for standard input.
        output: the file to write; None for standard output.
    """

    name: str
    source: Path | None
    output: Path | None

    @property
    def is_done(self) -> bool:
        """Whether its transcript was written before."""
        return self.output is not None and self.output.exists()


def plan_jobs(inputs: Sequence[str], folder: Path | None, suffix: str) -> list[Job]:
    """Jobs for files, folders (with all below them) and ``-``, in the order given.

    Args:
        inputs: as the command line gives them.
        folder: where transcripts go, named after their recordings; None for standard output.
        suffix: of a transcript's name.

    Raises:
        InputError: a folder has no recordings, or two transcripts would have the same name.
    """
    jobs: list[Job] = []
    for item in inputs:
        if item == STANDARD_INPUT:
            output = None if folder is None else folder / f"stdin{suffix}"
            jobs.append(Job("<stdin>", None, output))
            continue
        for path, relative in _files(Path(item)):
            output = None if folder is None else folder / relative.with_suffix(suffix)
            jobs.append(Job(str(path), path, output))
    _require_distinct(jobs)
    return jobs


def _files(path: Path) -> Iterator[tuple[Path, Path]]:
    """A file, or the recordings below a folder; each with its path below the output folder."""
    if not path.is_dir():
        yield path, Path(path.name)
        return
    found = sorted(
        file for file in path.rglob("*") if file.suffix.lower() in SOUND_SUFFIXES and file.is_file()
    )
    if not found:
        raise InputError(f"{path}: has no sound files ({', '.join(sorted(SOUND_SUFFIXES))})")
    yield from ((file, file.relative_to(path)) for file in found)


def _require_distinct(jobs: Sequence[Job]) -> None:
    sources: dict[Path, str] = {}
    for job in jobs:
        if job.output is None:
            continue
        if (other := sources.get(job.output)) is not None:
            raise InputError(
                f"{other} and {job.name} would both be written to {job.output}: rename one, or "
                "transcribe them into separate folders"
            )
        sources[job.output] = job.name
