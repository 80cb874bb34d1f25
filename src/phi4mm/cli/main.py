"""``phi4mm VERB``: finds the verb, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from phi4mm import __version__
from phi4mm.cli.parser import Parser, one_line
from phi4mm.errors import Cancelled, InputError, ModelFileError, Phi4MMError, SettingError

VERBS = (
    "demo",
    "run",
    "chat",
    "transcribe",
    "serve",
    "export",
    "batch",
    "pull",
    "convert",
    "quantize",
    "imatrix",
    "inspect",
    "devices",
    "perplexity",
    "compare",
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


def build_parser(verb_names: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of these verbs; every verb's module adds its own."""
    parser = Parser(
        prog="phi4mm",
        description="Phi-4-multimodal-instruct (text, pictures, sound) on your own machine.",
    )
    parser.add_argument("--version", action="version", version=f"phi4mm {__version__}")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the native library's log on stderr"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in verb_names:
        import_module(f"phi4mm.cli.{verb}").add_parser(verbs)
    for verb_parser in verbs.choices.values():
        verb_parser.set_defaults(parser=verb_parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 done, 2 bad input or usage, 1 internal, 130 stopped."""
    _prepare_streams()
    try:
        return _run(argv)
    except Phi4MMError as error:
        _say(str(error))
        return next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # impatience must not break the clean-up
        _say("stopped")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has gone: nothing more to say, and Python must not say so at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _say(f"{error.filename or 'input or output'}: {error.strerror or error}")
        return EXIT_INTERNAL


def _run(argv: Sequence[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args, unknown = build_parser(_verbs_of(argv)).parse_known_args(argv)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.WARNING,
        format="%(levelname)s: %(message)s",
        stream=sys.stderr,
    )
    if not args.verbose:
        # It logs an answer that a person stops as an error; of true errors the exception tells.
        logging.getLogger("phi4mm.native").setLevel(logging.CRITICAL)
    try:
        code: int = args.run(args)
    except SettingError as error:
        raise InputError(args.parser.in_flags(error)) from error
    sys.stdout.flush()
    return code


def _verbs_of(argv: Sequence[str]) -> Sequence[str]:
    """The verb that a command line names; all of them where it names none.

    No option before the verb takes a value.  Other verbs' modules need not be imported then.
    """
    first = next((word for word in argv if not word.startswith("-")), None)
    return [first] if first in VERBS else VERBS


def _prepare_streams() -> None:
    """Make do with closed streams and narrow encodings, and end well when asked to terminate."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # the second is not known on Windows
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), _terminate)


def _terminate(number: int, frame: object) -> None:
    """Leave through every ``finally``, so that no partial file stays behind."""
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    """One line on stderr, whatever characters a file's name has."""
    print(f"phi4mm: {one_line(text)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
