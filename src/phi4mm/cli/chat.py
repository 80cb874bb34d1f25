"""``phi4mm chat``: a conversation with pictures and sound, on a terminal or through a pipe."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.main import EXIT_BAD_INPUT
from phi4mm.cli.options import add_model_options, add_sampling_options, open_model, sampling_params

if TYPE_CHECKING:
    from phi4mm.chat.repl import Repl, Terminal

_EPILOG = """\
/help lists the commands. A file dropped or typed on a line of its own is attached to the next
question. Without a terminal, each line of standard input is a question or a command; answers go to
standard output, everything else to standard error, and the exit code is 2 if a line failed.

examples:
  phi4mm chat -m phi4mm-q8
  phi4mm chat --image receipt.jpg
  printf '/image chart.png\\nWhich bar is highest?\\n' | phi4mm chat
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "chat",
        help="talk with the model about text, pictures and clips",
        description="Talk with the model. What it has seen and heard stays in its memory: a second "
        "question about the same picture computes only the question.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--image", metavar="FILE", action="append", default=[], help="attach a picture; repeatable"
    )
    parser.add_argument(
        "--pages", metavar="1-3", help="pages of a PDF or TIFF file given with --image"
    )
    parser.add_argument(
        "--audio", metavar="FILE", action="append", default=[], help="attach a clip; repeatable"
    )
    parser.add_argument("--load", metavar="FILE", type=Path, help="go on with a saved conversation")
    parser.add_argument(
        "--context-shift",
        choices=("off", "oldest"),
        default="off",
        help="when the context is full: refuse the question (off, the default) or drop the oldest "
        "turns, which computes the rest again",
    )
    add_model_options(parser)
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Chat until the input ends."""
    from phi4mm.chat.repl import Repl
    from phi4mm.chat.session import Session
    from phi4mm.cli.stream import interruptible

    sampling = sampling_params(args)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with open_model(args) as model:
        session = Session(model, interruptible, sampling, args.context_shift)
        if args.load is not None:
            session.load(args.load)
        if args.system_prompt is not None:
            session.conversation = session.conversation.with_system(args.system_prompt)
        repl = Repl(session, _terminal(is_rich=is_terminal))
        _attach_given(repl, args)
        model.load()
        repl.run()
    return EXIT_BAD_INPUT if repl.n_errors and not is_terminal else 0


def _terminal(*, is_rich: bool) -> Terminal:
    from phi4mm.chat.terminal import PlainTerminal, RichTerminal

    if not is_rich:
        source = open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        return PlainTerminal(source, sys.stdout, sys.stderr)
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return RichTerminal(Path(state).expanduser() / "phi4mm" / "chat_history", os.environ)


def _attach_given(repl: Repl, args: argparse.Namespace) -> None:
    for name in args.image:
        repl.attach(Path(name), "image", args.pages)
    for name in args.audio:
        repl.attach(Path(name), "audio")
