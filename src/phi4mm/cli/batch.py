"""``phi4mm batch``: one answer for each of many files, on a Ray cluster."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.main import EXIT_BAD_INPUT
from phi4mm.cli.options import (
    add_model_options,
    add_sampling_options,
    bundle_path,
    offload,
    sampling_params,
)

if TYPE_CHECKING:
    from phi4mm.deploy.batch import Outcome, Question

_EPILOG = """\
Every file gets an answer of its own in the output folder, FILE.json. Files that have one are
skipped, so a batch that was stopped goes on where it was. Without -p, clips are transcribed.
Without --address, Ray starts on this machine, or is found by $RAY_ADDRESS.

examples:
  phi4mm batch photos/ -o answers -m phi4mm-q4 -p "Describe the picture." --workers 4 --cpus 8
  phi4mm batch calls/ -o transcripts -m phi4mm-q4 --address ray-head:6379 --workers 20
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "batch",
        help="answer one question about each of many files, on many machines",
        description="Ask the same about each of many pictures or clips, or transcribe recordings, "
        "with several workers on one machine or on a Ray cluster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "inputs", metavar="FILE", nargs="+", type=Path, help="pictures, clips, folders of them"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="folder for the answers"
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="what is asked about each file")
    parser.add_argument("--force", action="store_true", help="answer again what has an answer")
    group = parser.add_argument_group("workers")
    for flag, kind, default, text in (
        ("--workers", int, 1, "most of them at the same time"),
        ("--cpus", float, 1.0, "cores of each"),
        ("--gpus", float, 0.0, "accelerators of each"),
    ):
        group.add_argument(
            flag, metavar="N", type=kind, default=default, help=f"{text} (default: {default:g})"
        )
    group.add_argument("--address", metavar="HOST:PORT", help="of a running Ray cluster")
    add_model_options(parser)
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer everything; what failed is told at the end, and makes the exit code 2."""
    from phi4mm.deploy.batch import Workers, plan_items, run_batch
    from phi4mm.measurement.optional_package import import_optional

    question = _question(args)
    items = plan_items(args.inputs, args.output)
    left = [item for item in items if args.force or not item.output.exists()]
    if len(left) < len(items):
        _say(f"{len(items) - len(left)} of {len(items)} have an answer, skipped (--force)")
    if not left:
        return 0
    ray = import_optional("ray", "ray")
    # Ray counts cores and finds a running cluster by itself; its workers' lines are not ours
    ray.init(address=args.address, log_to_driver=args.verbose, logging_level=logging.WARNING)
    try:
        failed = run_batch(left, question, Workers(args.workers, args.cpus, args.gpus), _report)
    finally:
        ray.shutdown()
    if failed:
        _say(f"{len(failed)} of {len(left)} failed:")
        for outcome in failed:
            _say(f"  {outcome.error}")
    return EXIT_BAD_INPUT if failed else 0


def _question(args: argparse.Namespace) -> Question:
    from phi4mm.deploy.batch import Question
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.server.settings import BundlePaths

    engine = EngineParams(
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        offload=offload(args),
        type_k=args.cache_type_k,
        type_v=args.cache_type_v,
        flash_attention=args.flash_attn,
    )
    parts = (args.mmproj, args.vision_lora, args.speech_lora)
    paths = (None if path is None else path.absolute() for path in parts)
    bundle = BundlePaths(bundle_path(args).absolute(), *paths)
    bundle.open().close()  # a bundle that cannot be used is said before workers start
    return Question(bundle, engine, sampling_params(args), args.prompt)


def _report(outcome: Outcome) -> None:
    state = "failed" if outcome.error else "answered"
    _say(f"{outcome.source}: {state} in {outcome.seconds:.1f} s")


def _say(text: str) -> None:
    print(f"phi4mm: {text}", file=sys.stderr)
