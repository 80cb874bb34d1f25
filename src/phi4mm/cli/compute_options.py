"""Options of verbs that work on one bundle without answering: threads, and types of the cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_cache_type_options, add_threads_option

if TYPE_CHECKING:
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.native.device import Offload


def add_compute_options(parser: argparse.ArgumentParser) -> None:
    """The bundle, threads, and types of the cache."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder or decoder file")
    add_threads_option(parser)
    add_cache_type_options(parser)


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Where the numbers go."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write a record (JSON)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_parse_special_option(parser: argparse.ArgumentParser) -> None:
    """How the text is read."""
    parser.add_argument(
        "--parse-special",
        action="store_true",
        help="what special tokens are called in the text stands for them, as in a prompt",
    )


def compute_params(
    args: argparse.Namespace,
    *,
    n_ctx: int | None = None,
    offload: Offload | None = None,
    n_slots: int = 1,
    n_long_slots: int = 1,
) -> EngineParams:
    """The flags, checked.

    Raises:
        InputError: a value is out of range.
    """
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.native.device import NO_OFFLOAD

    return EngineParams(
        n_ctx=n_ctx,
        n_threads=args.threads,
        offload=offload or NO_OFFLOAD,
        n_slots=n_slots,
        n_long_slots=n_long_slots,
        type_k=args.cache_type_k,
        type_v=args.cache_type_v,
    )
