"""``phi4mm eval``: word error rates, scores of questions about pictures, the sample model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phi4mm.cli import eval_sample
from phi4mm.cli.compute_options import add_record_options
from phi4mm.cli.options import add_model_options, open_model
from phi4mm.cli.progress import progress_bar
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM
    from phi4mm.evals.answers_file import Answer
    from phi4mm.evals.evaluate import Pictures, Speech
    from phi4mm.evals.manifest import Item

_EPILOG = """\
manifests have one JSON object in each line, paths relative to the manifest:
  wer       {"audio": "a.wav", "text": "the words", "language": "en"}
  pictures  {"image": "a.png", "question": "How many?", "answers": ["2"], "metric": "exact"}
metrics: exact, anls, relaxed, verbatim, call
wer needs: pip install 'phi4mm[eval]'

examples:
  phi4mm eval wer LibriSpeech/test-clean -m bundle --answers clean.jsonl
  phi4mm eval pictures charts.jsonl -m bundle -o charts.json
"""
_MAX_TOKENS = {"wer": 448, "pictures": 64}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "eval",
        help="measure word error rate, answers about pictures, or the sample model",
        description="Ask a bundle every item of a set and score the answers. Items that cannot be "
        "asked are named at the end, and the exit code is then 2.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    wer = _add_task(tasks, "wer", "word error rate of clips")
    wer.add_argument(
        "--normalizer",
        choices=("whisper", "none"),
        default="whisper",
        help="how words are compared (default: whisper, as published rates do)",
    )
    _add_task(tasks, "pictures", "scores of answers to questions about pictures")
    eval_sample.add_parser(tasks)


def _add_task(
    tasks: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    parser = tasks.add_parser(
        name,
        help=what,
        description=f"Measure {what}. With --answers, a run that was stopped goes on where it was.",
    )
    parser.add_argument("items", metavar="MANIFEST", type=Path, help="JSON lines; wer: or a folder")
    parser.add_argument("--answers", metavar="FILE", type=Path, help="keep answers (JSON lines)")
    parser.add_argument("--limit", metavar="N", type=int, help="first items only (default: all)")
    parser.add_argument("-n", "--n-predict", metavar="N", type=int, help="longest answer in tokens")
    add_record_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run, parser=parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask and score; the bar goes to stderr, the numbers to stdout.

    Raises:
        InputError: after all that, if an item could not be asked.
    """
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.measurement.record import new_record

    items = _items(args)
    with open_model(args) as model:
        result = _score(args, items, _ask(args, model, items))
        values = {"task": args.task, "items": args.items.name, **asdict(result)}
        n_threads = EngineParams(n_threads=args.threads).threads
        record = new_record("eval", model.bundle, values, n_threads)
    if args.output is not None:
        record.write(args.output)
    print(json.dumps(values, ensure_ascii=False) if args.json else summary(result))
    if result.failed:
        id_, reason = next(iter(result.failed.items()))
        raise InputError(
            f"{len(result.failed)} of {len(items)} items could not be asked and are in no score, "
            f"the first is {id_}: {reason}"
        )
    return 0


def _items(args: argparse.Namespace) -> Sequence[Item]:
    from phi4mm.evals.manifest import read_clips, read_pictures
    from phi4mm.evals.word_errors import WordScorer

    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit is {args.limit}, must be at least 1")
    if args.task == "pictures":
        return read_pictures(args.items)[: args.limit]
    WordScorer(args.normalizer)  # what is missing is said before hours of work
    return read_clips(args.items)[: args.limit]


def _ask(args: argparse.Namespace, model: Phi4MM, items: Sequence[Item]) -> Mapping[str, Answer]:
    from phi4mm.evals.answers_file import AnswersFile
    from phi4mm.evals.evaluate import ask
    from phi4mm.measurement.record import identities

    max_tokens = args.n_predict or _MAX_TOKENS[args.task]
    header: dict[str, Any] = {
        "task": args.task,
        "files": [asdict(file) for file in identities(model.bundle)],
        "max_tokens": max_tokens,
        "cache": [args.cache_type_k, args.cache_type_v],
    }
    kept = nullcontext() if args.answers is None else AnswersFile(args.answers, header)
    with kept as answers, progress_bar("asking", unit="items") as progress:
        return ask(model, items, max_tokens, answers, progress)


def _score(
    args: argparse.Namespace, items: Sequence[Any], answers: Mapping[str, Answer]
) -> Speech | Pictures:
    from phi4mm.evals.evaluate import score_clips, score_pictures

    if args.task == "wer":
        return score_clips(items, answers, args.normalizer)
    return score_pictures(items, answers)


def summary(result: Speech | Pictures) -> str:
    """The rates or scores, one to a line, then what failed."""
    from phi4mm.evals.evaluate import Speech

    if isinstance(result, Speech):
        e = result.errors
        lines = [f"word error rate {name}: {rate:.2%}" for name, rate in result.wer.items()]
        lines.append(
            f"{e.n_words} words, {e.n_substituted} substituted, {e.n_deleted} deleted, "
            f"{e.n_inserted} inserted; real-time factor {result.rtf:.3f}"
        )
    else:
        lines = [
            f"{name}: {score.value:.2%} +/- {score.error:.2%}"
            for name, score in result.scores.items()
        ]
        lines.append(f"{result.seconds:.2f} s an answer")
    lines.append(f"{result.n_items} answered, {len(result.failed)} failed")
    lines += [f"failed: {id_}: {reason}" for id_, reason in result.failed.items()]
    return "\n".join(lines)
