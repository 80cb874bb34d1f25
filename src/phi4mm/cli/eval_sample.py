"""``phi4mm eval sample``: what the sample model was taught, on items that it has not seen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phi4mm.cli.compute_options import add_record_options
from phi4mm.cli.options import add_model_options, offload, open_bundle
from phi4mm.cli.progress import progress_bar
from phi4mm.cli.table import table
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.evals.ability import Ability
    from phi4mm.evals.ability_score import AbilityScore, Judged
    from phi4mm.evals.answers_file import AnswersFile
    from phi4mm.evals.interval import Interval
    from phi4mm.evals.slots import SlotAsker
    from phi4mm.modelfile.bundle import Bundle

_EPILOG = """\
python -m evals.make DIR makes the sets (see evals/README.md). Shares of right answers are to be at
least the bar, word error rates at most; all with their 95 % intervals.

examples:
  phi4mm eval sample held-out -np 8 -t 1 --engines 2 --answers sample.jsonl
  phi4mm eval sample held-out -m sample-q4 --adapter on -o q4.json
"""
_DEFAULT_SLOTS = 4
_MAX_ENGINES = 64  # one a core helps; each takes memory of its own


def add_parser(tasks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the task."""
    parser = tasks.add_parser(
        "sample",
        help="what the sample model was taught, with its adapters and without",
        description="Ask a bundle every item of the sample model's held-out sets, with the adapter "
        "that each needs and with none, and say whether it reaches what it must.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("items", metavar="DIR", type=Path, help="folder of the sets")
    parser.add_argument(
        "--adapter",
        choices=("on", "off", "both"),
        default="both",
        help="answer as meant, with adapters switched off, or once each (default: both)",
    )
    parser.add_argument(
        "-np",
        "--parallel",
        metavar="N",
        type=int,
        default=_DEFAULT_SLOTS,
        help=f"items at the same time (default: {_DEFAULT_SLOTS})",
    )
    parser.add_argument(
        "--engines",
        metavar="N",
        type=int,
        default=1,
        help="engines side by side, each with its own copy of the weights, -np slots and -t "
        "threads; for a small model one a core with -t 1 is fastest (default: 1)",
    )
    parser.add_argument(
        "--answers",
        metavar="FILE",
        type=Path,
        help="keep answers as they come (JSON lines): a run that was stopped goes on where it was",
    )
    parser.add_argument("--limit", metavar="N", type=int, help="first items of each set only")
    parser.add_argument(
        "--details", metavar="FILE", type=Path, help="write every answer (JSON lines)"
    )
    add_record_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Ask and score; the bar goes to stderr, the table to stdout.

    Raises:
        InputError: a set or a setting is wrong; or, after all that, an item could not be asked.
    """
    from phi4mm.evals.ability_score import score_ability
    from phi4mm.measurement.record import new_record

    params, abilities = _params(args), _abilities(args)
    with open_bundle(args) as bundle:
        judged = _ask(args, bundle, params, abilities)
        scores = [score_ability(ability, answers) for ability, answers in judged]
        values = {"task": "sample", "items": args.items.name, "abilities": [*map(asdict, scores)]}
        record = new_record("eval", bundle, values, params.threads)
    if args.details is not None:
        _write_details(args.details, judged)
    if args.output is not None:
        record.write(args.output)
    print(json.dumps(values, ensure_ascii=False) if args.json else summary(scores))
    _refuse_failures(scores)
    return 0


def _params(args: argparse.Namespace) -> EngineParams:
    from phi4mm.engine.parameters import EngineParams

    if not 1 <= args.engines <= _MAX_ENGINES:
        raise InputError(f"--engines is {args.engines}, must be 1 to {_MAX_ENGINES}")
    return EngineParams(
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        offload=offload(args),
        type_k=args.cache_type_k,
        type_v=args.cache_type_v,
        flash_attention=args.flash_attn,
        n_slots=args.parallel,
    )


def _abilities(args: argparse.Namespace) -> list[Ability]:
    from dataclasses import replace

    from phi4mm.evals.ability import read_abilities

    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit is {args.limit}, must be at least 1")
    return [
        replace(ability, items=ability.items[: args.limit])
        for ability in read_abilities(args.items)
    ]


def _ask(
    args: argparse.Namespace, bundle: Bundle, params: EngineParams, abilities: Sequence[Ability]
) -> list[tuple[Ability, list[Judged]]]:
    from phi4mm.evals.ability_score import ask_abilities

    merged = bundle.decoder.hparams.merged_adapter
    if merged is not None and args.adapter != "on":
        raise InputError(
            f"--adapter is {args.adapter}, must be on: {bundle.decoder.path} has its {merged} "
            f"adapter merged in"
        )
    with (
        _askers(bundle, params, args.engines) as askers,
        _kept_answers(args, bundle) as kept,
        progress_bar("asking", unit="items") as progress,
    ):
        return ask_abilities(askers, abilities, args.adapter, kept, progress)


@contextmanager
def _askers(bundle: Bundle, params: EngineParams, n_engines: int) -> Iterator[list[SlotAsker]]:
    """Engines that are loaded, each behind what keeps its slots busy."""
    from phi4mm.engine.context_plan import plan_contexts
    from phi4mm.engine.loading import loaded_engine
    from phi4mm.evals.slots import SlotAsker
    from phi4mm.prompt.chunk import PromptBuilder
    from phi4mm.prompt.tokenizer import Tokenizer

    plan = plan_contexts(params, bundle.decoder.hparams)
    tokenizer = Tokenizer(bundle.decoder.file.metadata)
    with ExitStack() as stack:
        engines = [
            stack.enter_context(loaded_engine(bundle, params, tokenizer)) for _ in range(n_engines)
        ]
        yield [
            SlotAsker(engine, PromptBuilder(bundle, tokenizer), plan, params.n_slots)
            for engine in engines
        ]


def _kept_answers(
    args: argparse.Namespace, bundle: Bundle
) -> AbstractContextManager[AnswersFile | None]:
    from phi4mm.evals.answers_file import AnswersFile
    from phi4mm.measurement.record import identities

    if args.answers is None:
        return nullcontext()
    header = {
        "task": "sample",
        "files": [asdict(file) for file in identities(bundle)],
        "cache": [args.cache_type_k, args.cache_type_v],
    }
    return AnswersFile(args.answers, header)


def _write_details(path: Path, judged: Iterable[tuple[Ability, Sequence[Judged]]]) -> None:
    from phi4mm.measurement.staged_file import staged_file

    with staged_file(path) as stream:
        for ability, answers in judged:
            for answer in answers:
                values: dict[str, Any] = {"ability": ability.name, **asdict(answer)}
                stream.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")


def summary(scores: Sequence[AbilityScore]) -> str:
    """The table, one ability to a line, then what could not be asked."""
    rows = [("ability", "items", "score", "bar", "", "adapter off")]
    for score in scores:
        is_rate = score.kind == "clips"
        bar = "" if score.bar is None else f"{'<=' if is_rate else '>='} {100 * score.bar:g} %"
        verdict = {None: "", True: "reached", False: "missed"}[score.is_reached]
        rows.append(
            (
                f"{score.title}, word error rate" if is_rate else score.title,
                str(score.n_items),
                _percent(score.score),
                bar,
                verdict,
                _percent(score.score_off),
            )
        )
    failed = [line for score in scores for line in _failure_lines(score)]
    return "\n".join([*table(rows, right=(1,)), *failed])


def _percent(interval: Interval | None) -> str:
    if interval is None:
        return ""
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:5.1f} % ({low:.1f} to {high:.1f})"


def _failure_lines(score: AbilityScore) -> Iterable[str]:
    return (f"failed: {id_}: {reason}" for id_, reason in score.failed.items())


def _refuse_failures(scores: Sequence[AbilityScore]) -> None:
    failed = [pair for score in scores for pair in score.failed.items()]
    if failed:
        id_, reason = failed[0]
        raise InputError(
            f"{len(failed)} items could not be asked and are in no score, the first is {id_}: "
            f"{reason}"
        )
