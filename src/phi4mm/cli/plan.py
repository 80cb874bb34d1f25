"""``phi4mm plan``: the memory a bundle takes, before anything is loaded."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from phi4mm.cli.compute_options import add_compute_options, add_record_options, compute_params
from phi4mm.cli.table import byte_size, table

if TYPE_CHECKING:
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.plan.memory import MemoryPlan, Planner

_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_EPILOG = """\
Weights stay in their mapped files: the system can drop and read them again, but without room for
them every token waits for the disk. So they count. The sizes are those of the CPU.

examples:
  phi4mm plan bundle -c 16384
  phi4mm plan bundle -c 32768 -ctk q8_0 -ctv q8_0 --memory 8GB
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "plan",
        help="show the memory a bundle takes, and what fits",
        description="Show the memory of weights, caches, compute buffers and encoders at a "
        "context size, and with --memory the largest context that fits.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_compute_options(parser)
    parser.add_argument(
        "-c", "--ctx-size", metavar="N", type=int, help="positions per sequence (default: 8192)"
    )
    for flags, what in (
        (("-np", "--parallel"), "conversations at the same time (default: 1)"),
        (("--parallel-long",), "of these, beyond the original context (default: 1)"),
    ):
        parser.add_argument(*flags, metavar="N", type=int, default=1, help=what)
    parser.add_argument("--memory", metavar="SIZE", type=_size, help="what there is, such as 8GB")
    add_record_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, on stdout.  The exit code is 2 where it does not fit."""
    from phi4mm.api import Phi4MM
    from phi4mm.cli.main import EXIT_BAD_INPUT
    from phi4mm.measurement.record import new_record
    from phi4mm.plan.memory import Planner

    params = compute_params(
        args, n_ctx=args.ctx_size, n_slots=args.parallel, n_long_slots=args.parallel_long
    )
    with Phi4MM(args.bundle, n_ctx=args.ctx_size) as model:
        with closing(Planner(model, params)) as planner:
            plan = planner.plan(params)
            largest = dict(_largest(planner, params, args.memory)) if args.memory else {}
        record = new_record("plan", model.bundle, asdict(plan), params.threads)
    if args.output is not None:
        record.write(args.output)
    values = asdict(plan) | {"n_bytes": plan.n_bytes}
    if args.memory:
        values |= {"memory": args.memory, "largest_context": largest}
    print(json.dumps(values) if args.json else summary(plan, args.memory, largest))
    return EXIT_BAD_INPUT if args.memory and plan.n_bytes > args.memory else 0


def _largest(
    planner: Planner, params: EngineParams, limit: int
) -> Iterator[tuple[str, int | None]]:
    """The largest context with the types asked for, and with the smallest cache."""
    for choice in dict.fromkeys((params, replace(params, type_k="q8_0", type_v="q8_0"))):
        name = f"{choice.type_k}/{choice.type_v}"
        yield name, planner.largest_context(choice, limit)


def summary(plan: MemoryPlan, limit: int | None, largest: dict[str, int | None]) -> str:
    """The table, the totals, and what fits."""
    rows = [(i.name, byte_size(i.n_bytes), str(i.place)) for i in plan.items]
    mapped, memory = plan.bytes_in("mapped"), plan.bytes_in("memory")
    rows.append((f"in all, at {plan.n_ctx} positions", byte_size(plan.n_bytes), ""))
    lines = table(rows, right=(1,))
    lines.append(f"({byte_size(mapped)} mapped from files, {byte_size(memory)} in memory)")
    if limit is None:
        return "\n".join(lines)
    left = limit - plan.n_bytes
    verdict = f"fits, {byte_size(left)} left" if left >= 0 else f"{byte_size(-left)} too much"
    lines.append(f"{byte_size(limit)}: {verdict}")
    for types, n_ctx in largest.items():
        text = "no context fits" if n_ctx is None else f"-c {n_ctx} is the largest that fits"
        lines.append(f"  with a cache of {types}: {text}")
    return "\n".join(lines)


def _size(text: str) -> int:
    """Bytes of a size such as 8GB or 7.5GiB."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?b)", text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 8GB or 7.5GiB")
    return round(float(found[1]) * _UNITS[found[2]])
