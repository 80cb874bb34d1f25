"""``phi4mm bench``: how fast a bundle is here, and how near to what the machine can do."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.interrupt import cancel_on_signal
from phi4mm.cli.options import add_model_options, offload, open_model
from phi4mm.cli.progress import progress_bar
from phi4mm.cli.table import byte_size, table

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM
    from phi4mm.bench.bench import BenchReport
    from phi4mm.bench.decoder import Sizes
    from phi4mm.bench.measure import Measure
    from phi4mm.bench.peak import Peak
    from phi4mm.engine.parameters import EngineParams

_HEADER = ("", "median", "lowest", "highest", "unit", "limit", "reached")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "bench",
        help="measure speed, load time and memory, beside the machine's limits",
        description="Measure prefill and generation with and without each adapter, the encoders, "
        "time to the first token, load time and peak memory. The last line is one JSON object.",
    )
    for flag, what, default in (
        ("-p", "tokens of a prefill", 512),
        ("-n", "tokens of a generation", 128),
        ("-r", "runs of each, medians are shown", 3),
    ):
        parser.add_argument(
            flag, metavar="N", type=int, default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write a record (JSON)")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; bar and lines go to stderr when they are there, the table and JSON to stdout."""
    from phi4mm.bench.bench import physics
    from phi4mm.bench.decoder import Sizes
    from phi4mm.bench.peak import Peak
    from phi4mm.measurement.record import new_record
    from phi4mm.native.device import NO_OFFLOAD

    sizes, params = Sizes(args.p, args.n, args.r), _engine_params(args)
    with open_model(args) as model:
        peak = Peak.measure() if params.offload == NO_OFFLOAD else None
        if not args.json and peak is not None:
            print(physics(model.bundle, params, sizes, peak), end="\n\n", flush=True)
        report = _measure(model, params, sizes, peak)
        record = new_record("bench", model.bundle, asdict(report), params.threads)
    if args.output is not None:
        record.write(args.output)
    if not args.json:
        print(summary(report), end="\n\n")
    print(record.to_json())
    return 0


def _measure(model: Phi4MM, params: EngineParams, sizes: Sizes, peak: Peak | None) -> BenchReport:
    from phi4mm.bench.bench import run_bench
    from phi4mm.native.abort import AbortFlag
    from phi4mm.native.library import load

    abort_flag = AbortFlag(load())

    def cancel() -> None:
        abort_flag.set()
        model.cancel()

    bar = progress_bar("measuring", unit="runs", redraws_per_s=1)  # it takes time from the runs
    with cancel_on_signal(cancel), bar as progress:
        return run_bench(model, params, sizes, peak, abort_flag, _show_measure, progress)


def _engine_params(args: argparse.Namespace) -> EngineParams:
    from phi4mm.engine.parameters import EngineParams

    return EngineParams(
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        offload=offload(args),
        type_k=args.cache_type_k,
        type_v=args.cache_type_v,
        flash_attention=args.flash_attn,
    )


def _show_measure(measure: Measure) -> None:
    if sys.stderr.isatty():
        print("  ".join(_row(measure)), file=sys.stderr)


def summary(report: BenchReport) -> str:
    """The table, then load time and memory."""
    lines = table([_HEADER, *map(_row, report.measures)], right=(1, 2, 3, 5, 6))
    footprint = report.footprint
    lines.append("")
    lines.append(
        f"load {footprint.load_s:.2f} s, after {footprint.open_s:.2f} s to open and check the files"
    )
    mapped = f"{byte_size(footprint.mapped_bytes)} of mapped weights"
    if footprint.anonymous_bytes is None:
        lines.append(f"memory: {mapped}; this system does not tell the peak of the rest")
    else:
        lines.append(f"peak memory {byte_size(footprint.anonymous_bytes)}, and {mapped}")
    lines += [f"not measured: {reason}" for reason in report.skipped]
    if report.peak is None:
        lines.append("no limits: an accelerator computes, whose peaks are not measured")
    return "\n".join(lines)


def _row(measure: Measure) -> tuple[str, ...]:
    numbers = (measure.value, measure.low, measure.high)
    limit = "" if measure.limit is None else _number(measure.limit)
    reached = "" if measure.fraction is None else f"{measure.fraction:.0%}"
    return (measure.name, *map(_number, numbers), measure.unit, limit, reached)


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 1000 else f"{x:.4g}"
