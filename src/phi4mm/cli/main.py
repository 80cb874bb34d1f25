"""``phi4mm VERB``: finds the verb, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from phi4mm import __version__
from phi4mm.errors import Cancelled, InputError, ModelFileError, Phi4MMError

VERBS = (
    "demo",
    "run",
    "chat",
    "transcribe",
    "serve",
    "convert",
    "quantize",
    "imatrix",
    "inspect",
    "perplexity",
    "bench",
    "plan",
    "eval",
    "verify",
    "card",
)

EXIT_BAD_INPUT = 2
EXIT_INTERNAL = 1
EXIT_INTERRUPTED = 130
_EXIT_CODES: dict[type[Phi4MMError], int] = {
    InputError: EXIT_BAD_INPUT,
    ModelFileError: EXIT_BAD_INPUT,
    Cancelled: EXIT_INTERRUPTED,
    Phi4MMError: EXIT_INTERNAL,
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; every verb's module adds its own."""
    parser = argparse.ArgumentParser(
        prog="phi4mm",
        description="Phi-4-multimodal-instruct (text, pictures, sound) on your own machine.",
    )
    parser.add_argument("--version", action="version", version=f"phi4mm {__version__}")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the native library's log on stderr"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        import_module(f"phi4mm.cli.{verb}").add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 done, 2 bad input or usage, 1 internal, 130 stopped."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.WARNING,
        format="%(levelname)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except Phi4MMError as error:
        print(f"phi4mm: {error}", file=sys.stderr)
        return next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        print("phi4mm: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has gone: nothing more to say, and Python must not say so at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
