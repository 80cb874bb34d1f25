"""Both sides beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from phi4mm.api import Phi4MM
from phi4mm.convert.checkpoint import Checkpoint
from phi4mm.errors import InputError
from phi4mm.progress import Advance, Progress, Stage, counter
from phi4mm.verify import ours
from phi4mm.verify.case import CASES, CLIP, PICTURE, Array, Case, Stages
from phi4mm.verify.reference import Reference
from phi4mm.verify.weights import WeightReport, compare_weights

COSINE_BAR: Final = 0.99999


@dataclass(frozen=True, slots=True)
class StageError:
    """A stage of the encoders.

    Attributes:
        name: the stage.
        max_error: largest absolute difference.
        scale: root mean square of the reference.
        relative: root mean square of the differences, over the scale.
    """

    name: str
    max_error: float
    scale: float
    relative: float


@dataclass(frozen=True, slots=True)
class AnswerError:
    """A prompt.

    Attributes:
        name: the case.
        n_tokens: of the prompt.
        max_error: largest absolute difference of logits.
        cosine: of the logits after the last token.
        n_agreed: tokens of the bundle's greedy answer that the reference chooses too.
        n_greedy: tokens of that answer.
    """

    name: str
    n_tokens: int
    max_error: float
    cosine: float
    n_agreed: int
    n_greedy: int


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


def verify(checkpoint: Checkpoint, model: Phi4MM, n_threads: int, stage: Stage) -> VerifyReport:
    """Compare a bundle with the checkpoint it was made from.

    Args:
        checkpoint: the source.
        model: the bundle, opened; with an F32 cache for exact numbers.
        n_threads: threads for the encoders.
        stage: told what is being done, and how far it is.

    Raises:
        ModelFileError: the bundle was made from another checkpoint.
    """
    with stage("comparing weights", None) as progress:
        weights = compare_weights(checkpoint, model.bundle, progress)
    try:
        with stage("loading the reference", "tensors") as progress:
            reference = Reference(checkpoint, progress)
    except InputError as error:
        return VerifyReport(weights, (), (), (f"stages and answers: {error}",))
    with stage("comparing the encoders", "passes") as progress:
        stages = tuple(_compare_stages(model, n_threads, reference, progress))
    answers, missing = [], []
    with stage("comparing answers", "prompts") as progress:
        advance = counter(len(CASES), progress)
        for case in CASES:
            try:
                answers.append(_compare_answer(model, reference, case))
            except InputError as error:
                missing.append(f"answer to {case.name}: {error}")
            advance(1)
    return VerifyReport(weights, stages, tuple(answers), tuple(missing))


def _compare_stages(
    model: Phi4MM, n_threads: int, reference: Reference, progress: Progress | None
) -> Iterator[StageError]:
    bundle = model.bundle
    advance = counter(1 + (bundle.vision is not None) + 2 * (bundle.audio is not None), progress)
    found = ours.encoder_stages(model, n_threads)
    advance(1)
    right = _reference_stages(model, reference, advance)
    for name, pieces in found.items():
        yield _stage_error(name, pieces, right[name])


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


def _stage_error(name: str, found: list[Array], right: list[Array]) -> StageError:
    """Compare what was computed; patches without a part in the result are NaN on our side."""
    a = np.concatenate([piece.reshape(-1, piece.shape[-1]) for piece in found])
    b = np.concatenate([piece.reshape(-1, piece.shape[-1]) for piece in right])
    n = min(len(a), len(b))  # the last attention chunk is filled up on one side
    computed = ~np.isnan(a[:n])
    difference = (a[:n] - b[:n])[computed].astype(np.float64)
    scale = float(np.sqrt((b[:n][computed].astype(np.float64) ** 2).mean()))
    rms = float(np.sqrt((difference**2).mean()))
    return StageError(name, float(np.abs(difference).max()), scale, rms / scale)


def _compare_answer(model: Phi4MM, reference: Reference, case: Case) -> AnswerError:
    answer = ours.answer(model, case)
    prompt = model.prompts.raw(case.prompt, case.images, case.audios)
    n = len(answer.logits)
    right = reference.logits(prompt, answer.tokens[:-1])
    choices = right[n - 1 :].argmax(axis=-1)
    return AnswerError(
        name=case.name,
        n_tokens=n,
        max_error=float(np.abs(answer.logits - right[:n]).max()),
        cosine=_cosine(answer.logits[-1], right[n - 1]),
        n_agreed=int((choices == np.array(answer.tokens)).sum()),
        n_greedy=len(answer.tokens),
    )


def _cosine(a: Array, b: Array) -> float:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def to_markdown(report: VerifyReport) -> str:
    """The report as Markdown."""
    w = report.weights
    n_left = w.n_tensors - w.n_used
    lines = [f"# Parity\n\nTensors: {w.n_used} used, {n_left} left out, of {w.n_tensors}."]
    lines += [f"- left out {n}: {reason}" for reason, n in w.n_dropped.items()]
    lines.append("\n## Weights\n")
    lines += _table(
        ("part", "types", "tensors", "relative error", "worst tensor", "its error"),
        [(p.part, ", ".join(p.types), str(p.n_tensors), f"{p.relative:.3e}", p.worst,
          f"{p.worst_relative:.3e}") for p in w.parts],
    )  # fmt: skip
    if report.stages:
        lines.append("\n## Encoders\n")
        lines += _table(
            ("stage", "largest error", "scale", "relative error"),
            [(s.name, f"{s.max_error:.3e}", f"{s.scale:.3g}", f"{s.relative:.3e}")
             for s in report.stages],
        )  # fmt: skip
    if report.answers:
        lines.append("\n## Answers\n")
        lines += _table(
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


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [header, ("---",) * len(header), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]
