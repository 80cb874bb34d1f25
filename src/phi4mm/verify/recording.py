"""What the reference says, on disk: for those who cannot run it.

Who has torch, transformers and the memory records once; everybody else compares with that.  Of each
stage some rows are kept, of each prompt the logits after its last token and the greedy answer: some
10 MB for the real model.  The file is numpy's ``.npz`` without pickled objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

from phi4mm.errors import InputError, ModelFileError
from phi4mm.measurement.staged_file import staged_file
from phi4mm.verify.case import CASES, Answer, Array, Case, Stages
from phi4mm.verify.difference import AnswerError, StageError, cosine, rows_of, stage_error

_FORMAT: Final = 1
_ABOUT, _STAGE, _LOGITS, _TOKENS = "about", "stage:", "logits:", "tokens:"
_MAX_ROWS: Final = 64  # of a stage


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """Rows of a stage.

    Attributes:
        rows: every ``step``-th, (n, width).
        step: 1 for all of them.
    """

    rows: Array = field(repr=False)
    step: int


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What the reference answers to a case.

    Attributes:
        logits: after the prompt's last token, (n_vocab,).
        tokens: its greedy answer, as far as it is known.
    """

    logits: Array = field(repr=False)
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """What the reference makes of a checkpoint.

    Attributes:
        bundle_id: of the bundles that are made from the checkpoint.
        stages: of the encoders, by name.
        answers: by the case's name.
    """

    bundle_id: str
    stages: dict[str, RecordedStage] = field(default_factory=dict)
    answers: dict[str, RecordedAnswer] = field(default_factory=dict)

    def add_stage(self, name: str, pieces: Sequence[Array]) -> None:
        """Keep some rows of a stage."""
        rows = rows_of(pieces)
        step = -(-len(rows) // _MAX_ROWS)
        self.stages[name] = RecordedStage(rows[::step].copy(), step)

    def add_answer(self, case: Case, logits: Array, tokens: Sequence[int]) -> None:
        """Keep the logits of an answer's beginning, and the answer.

        Args:
            case: what was asked.
            logits: after the prompt's last token and after each of ``tokens`` but the last,
                (n, n_vocab).
            tokens: the answer that the reference was led along.  Where it chooses another one, the
                rest says nothing about its own answer, and is left out.
        """
        choices = logits.argmax(axis=-1)
        n_agreed = _n_common(choices, tokens)
        known = tuple(map(int, choices[: n_agreed + 1]))
        self.answers[case.name] = RecordedAnswer(logits[0].copy(), known)

    def stage_errors(self, found: Stages) -> Iterator[StageError]:
        """Compare the stages that a bundle has.

        Raises:
            ModelFileError: the recording has other stages.
        """
        for name, pieces in found.items():
            right = self.stages.get(name)
            rows = rows_of(pieces)
            if right is None or right.rows.shape[1:] != rows.shape[1:]:
                raise ModelFileError(f"the recording has no stage {name} of width {rows.shape[1]}")
            yield stage_error(name, rows[:: right.step], right.rows)

    def answer_error(self, case: Case, answer: Answer) -> AnswerError:
        """Compare a bundle's answer.

        Raises:
            InputError: the reference was not asked.
            ModelFileError: it has another vocabulary.
        """
        right = self.answers.get(case.name)
        if right is None:
            raise InputError("not in the recording")
        last = answer.logits[-1]
        if right.logits.shape != last.shape:
            raise ModelFileError(f"the recording has {right.logits.size} tokens, not {last.size}")
        return AnswerError(
            name=case.name,
            n_tokens=len(answer.logits),
            max_error=float(np.abs(last - right.logits).max()),
            cosine=cosine(last, right.logits),
            n_agreed=_n_common(answer.tokens, right.tokens),
            n_greedy=len(right.tokens),
        )


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the beginning that two answers share."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _cases_digest() -> str:
    """Tells what is asked from what another version asks."""
    digest = sha256()
    for case in CASES:
        digest.update(f"{case.name}\0{case.prompt}\0".encode())
        for path in (*case.images, *case.audios):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def write_recording(recording: Recording, path: Path) -> None:
    """Write a recording; it appears whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    about = {
        "phi4mm_recording": _FORMAT,
        "bundle_id": recording.bundle_id,
        "cases": _cases_digest(),
        "steps": {name: stage.step for name, stage in recording.stages.items()},
    }
    arrays: dict[str, Any] = {_ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)}
    arrays |= {_STAGE + name: stage.rows for name, stage in recording.stages.items()}
    for name, answer in recording.answers.items():
        arrays[_LOGITS + name] = answer.logits
        arrays[_TOKENS + name] = np.array(answer.tokens, np.int32)
    with staged_file(path) as stream:
        np.savez_compressed(stream, **arrays)


def read_recording(path: Path, bundle_id: str | None) -> Recording:
    """Read a recording of the checkpoint that a bundle was made from.

    Raises:
        InputError: the file cannot be read.
        ModelFileError: it is no recording, of another checkpoint, or of other prompts.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            about = json.loads(bytes(arrays[_ABOUT]))
            is_known = about["phi4mm_recording"] == _FORMAT
            recording = _recording(about, arrays)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (BadZipFile, ValueError, KeyError, TypeError, AttributeError, EOFError):
        is_known = False
    if not is_known:
        raise ModelFileError(f"{path}: no recording of phi4mm verify (format {_FORMAT})")
    if recording.bundle_id != bundle_id:
        raise ModelFileError(
            f"{path}: of the checkpoint of bundle {recording.bundle_id}, must be of {bundle_id}"
        )
    if about["cases"] != _cases_digest():
        raise ModelFileError(f"{path}: of other prompts: record again with this version")
    return recording


def _recording(about: dict[str, Any], arrays: Any) -> Recording:
    recording = Recording(str(about["bundle_id"]))
    for key in arrays.files:
        kind, _, name = key.partition(":")
        if f"{kind}:" == _STAGE:
            recording.stages[name] = RecordedStage(
                _floats(arrays[key], n_axes=2), int(about["steps"][name])
            )
        elif f"{kind}:" == _LOGITS:
            tokens = tuple(map(int, arrays[_TOKENS + name]))
            recording.answers[name] = RecordedAnswer(_floats(arrays[key], n_axes=1), tokens)
    return recording


def _floats(values: Any, n_axes: int) -> Array:
    """An array of the file, float32.

    Raises:
        ValueError: it is something else.
    """
    if values.ndim != n_axes or values.dtype != np.float32 or not values.size:
        raise ValueError(f"{values.dtype} {values.shape}")
    array: Array = values
    return array
