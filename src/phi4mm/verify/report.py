"""Both sides beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from phi4mm.api import Phi4MM
from phi4mm.convert.checkpoint import Checkpoint
from phi4mm.errors import InputError
from phi4mm.markdown import markdown_table
from phi4mm.progress import Advance, Progress, Stage, counter
from phi4mm.verify import ours
from phi4mm.verify.case import CASES, CLIP, PICTURE, Case, Stages
from phi4mm.verify.difference import AnswerError, StageError, cosine, rows_of, stage_error
from phi4mm.verify.recording import Recording
from phi4mm.verify.reference import Reference
from phi4mm.verify.weights import WeightReport, compare_weights

COSINE_BAR: Final = 0.99999


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """How a bundle compares with its checkpoint.

    Attributes:
        weights: tensors used, and how far they are.
        stages: of the encoders; empty without a reference.
        answers: to the prompts; empty without a reference.
        missing: what was not compared, and why.
    """

    weights: WeightReport
    stages: tuple[StageError, ...]
    answers: tuple[AnswerError, ...]
    missing: tuple[str, ...]

    @property
    def meets_bar(self) -> bool | None:
        """Whether every answer is as near as F16 weights must be; None without a reference."""
        if not self.answers:
            return None
        return all(a.cosine >= COSINE_BAR and a.n_agreed == a.n_greedy for a in self.answers)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"meets_bar": self.meets_bar}


def verify(
    checkpoint: Checkpoint,
    model: Phi4MM,
    n_threads: int,
    stage: Stage,
    *,
    recorded: Recording | None = None,
    record: Recording | None = None,
) -> VerifyReport:
    """Compare a bundle with the checkpoint it was made from.

    Args:
        checkpoint: the source.
        model: the bundle, opened; with an F32 cache for exact numbers.
        n_threads: threads for the encoders.
        stage: told what is being done, and how far it is.
        recorded: what the reference says, to compare with in its place.
        record: takes in what the reference says.

    Raises:
        InputError: there is no reference to record.
        ModelFileError: the bundle was made from another checkpoint, or the recording is of other
            stages.
    """
    with stage("comparing weights", None) as progress:
        weights = compare_weights(checkpoint, model.bundle, progress)
    if recorded is not None:
        return _compare_recorded(weights, model, n_threads, recorded, stage)
    try:
        with stage("loading the reference", "tensors") as progress:
            reference = Reference(checkpoint, progress)
    except InputError as error:
        if record is not None:
            raise
        return VerifyReport(weights, (), (), (f"stages and answers: {error}; or --recorded FILE",))
    with stage("comparing the encoders", "passes") as progress:
        stages = tuple(_compare_stages(model, n_threads, reference, record, progress))
    answers, missing = _compare_cases(
        lambda case: _compare_answer(model, reference, case, record), stage
    )
    return VerifyReport(weights, stages, answers, missing)


def _compare_recorded(
    weights: WeightReport, model: Phi4MM, n_threads: int, recorded: Recording, stage: Stage
) -> VerifyReport:
    with stage("comparing the encoders", "passes") as progress:
        advance = counter(1, progress)
        stages = tuple(recorded.stage_errors(ours.encoder_stages(model, n_threads)))
        advance(1)
    answers, missing = _compare_cases(
        lambda case: recorded.answer_error(case, ours.answer(model, case)), stage
    )
    return VerifyReport(weights, stages, answers, missing)


def _compare_cases(
    compare: Callable[[Case], AnswerError], stage: Stage
) -> tuple[tuple[AnswerError, ...], tuple[str, ...]]:
    """The answers that could be compared, and why others could not."""
    answers, missing = [], []
    with stage("comparing answers", "prompts") as progress:
        advance = counter(len(CASES), progress)
        for case in CASES:
            try:
                answers.append(compare(case))
            except InputError as error:
                missing.append(f"answer to {case.name}: {error}")
            advance(1)
    return tuple(answers), tuple(missing)


def _compare_stages(
    model: Phi4MM,
    n_threads: int,
    reference: Reference,
    record: Recording | None,
    progress: Progress | None,
) -> Iterator[StageError]:
    bundle = model.bundle
    advance = counter(1 + (bundle.vision is not None) + 2 * (bundle.audio is not None), progress)
    found = ours.encoder_stages(model, n_threads)
    advance(1)
    right = _reference_stages(model, reference, advance)
    for name, pieces in found.items():
        if record is not None:
            record.add_stage(name, right[name])
        yield stage_error(name, rows_of(pieces), rows_of(right[name]))


def _reference_stages(model: Phi4MM, reference: Reference, advance: Advance) -> Stages:
    reference.clear()
    if model.bundle.vision is not None:
        reference.encode_picture(model.prompts.picture(PICTURE))
        advance(1)
    if model.bundle.audio is None:
        return dict(reference.stages)
    sound = model.prompts.sound(CLIP)
    reference.encode_sound(sound, "speech")
    advance(1)
    found = dict(reference.stages)  # the encoder's own stages are those of one pass
    reference.clear()
    reference.encode_sound(sound, "vision")
    advance(1)
    return found | {"aud.projected.vision": reference.stages["aud.projected.vision"]}


def _compare_answer(
    model: Phi4MM, reference: Reference, case: Case, record: Recording | None
) -> AnswerError:
    answer = ours.answer(model, case)
    prompt = model.prompts.raw(case.prompt, case.images, case.audios)
    n = len(answer.logits)
    right = reference.logits(prompt, answer.tokens[:-1])
    if record is not None:
        record.add_answer(case, right[n - 1 :], answer.tokens)
    choices = right[n - 1 :].argmax(axis=-1)
    return AnswerError(
        name=case.name,
        n_tokens=n,
        max_error=float(np.abs(answer.logits - right[:n]).max()),
        cosine=cosine(answer.logits[-1], right[n - 1]),
        n_agreed=int((choices == np.array(answer.tokens)).sum()),
        n_greedy=len(answer.tokens),
    )


def to_markdown(report: VerifyReport) -> str:
    """The report as Markdown."""
    w = report.weights
    n_left = w.n_tensors - w.n_used
    lines = [f"# Parity\n\nTensors: {w.n_used} used, {n_left} left out, of {w.n_tensors}."]
    lines += [f"- left out {n}: {reason}" for reason, n in w.n_dropped.items()]
    lines.append("\n## Weights\n")
    lines += markdown_table(
        ("part", "types", "tensors", "relative error", "worst tensor", "its error"),
        [(p.part, ", ".join(p.types), str(p.n_tensors), f"{p.relative:.3e}", p.worst,
          f"{p.worst_relative:.3e}") for p in w.parts],
    )  # fmt: skip
    if report.stages:
        lines.append("\n## Encoders\n")
        lines += markdown_table(
            ("stage", "largest error", "scale", "relative error"),
            [(s.name, f"{s.max_error:.3e}", f"{s.scale:.3g}", f"{s.relative:.3e}")
             for s in report.stages],
        )  # fmt: skip
    if report.answers:
        lines.append("\n## Answers\n")
        lines += markdown_table(
            ("prompt", "tokens", "largest error", "cosine after the last token", "greedy tokens"),
            [(a.name, str(a.n_tokens), f"{a.max_error:.3e}", f"{a.cosine:.8f}",
              f"{a.n_agreed}/{a.n_greedy}") for a in report.answers],
        )  # fmt: skip
        verdict = "met" if report.meets_bar else "not met"
        lines.append(
            f"\nThe bar for F16 weights (cosine at least {COSINE_BAR}, all greedy tokens) is "
            f"{verdict}."
        )
    lines += [f"\nNot compared: {reason}" for reason in report.missing]
    return "\n".join(lines)
