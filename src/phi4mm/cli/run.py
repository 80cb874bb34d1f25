"""``phi4mm run``: one prompt with its pictures and clips, one answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_model_options, add_sampling_options, open_model, sampling_params
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.engine.event import Event
    from phi4mm.media.image import ImageSource
    from phi4mm.prompt.message import Message


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "run",
        help="answer one prompt with text, pictures and clips",
        description="Answer one prompt. Media come before the text, in the order given. "
        "Without -p the prompt is read from standard input, if that is not a terminal.",
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="what to ask")
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--image", metavar="FILE", action="append", default=[], help="a picture; repeatable"
    )
    parser.add_argument(
        "--pages", metavar="1-3", help="pages of the PDF or TIFF files given with --image"
    )
    parser.add_argument(
        "--audio", metavar="FILE", action="append", default=[], help="a clip; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument(
        "--no-display-prompt", action="store_true", help="do not repeat the prompt on the terminal"
    )
    add_model_options(parser)
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer, on stdout; everything else goes to stderr."""
    from phi4mm.cli.stream import interruptible
    from phi4mm.modality import mode_of

    messages = _messages(args)
    sampling = sampling_params(args)
    mode = mode_of(n_images=len(args.image), n_audios=len(args.audio))
    with open_model(args, mode=mode) as model:
        answer = interruptible(model.generate(messages, sampling), model.cancel)
        with closing(answer):
            if args.json:
                _print_json(answer)
            else:
                _print_text(args, answer)
    return 0


def _messages(args: argparse.Namespace) -> list[Message]:
    from phi4mm.prompt.message import Message, TextPart, user_message

    prompt = args.prompt
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().rstrip("\n")
    if not (prompt or args.image or args.audio):
        raise InputError("nothing to answer: give a prompt (-p), a picture or a clip")
    args.prompt = prompt or ""
    system = [] if args.system_prompt is None else [
        Message("system", (TextPart(args.system_prompt),))
    ]  # fmt: skip
    return [*system, user_message(args.prompt, images=_images(args), audios=args.audio)]


def _images(args: argparse.Namespace) -> list[ImageSource]:
    """The pictures, or the chosen pages; of an animation the first frame, which is said."""
    from phi4mm.media.pages import load_pages, parse_pages

    numbers = None if args.pages is None else parse_pages(args.pages)
    images: list[ImageSource] = []
    for name in args.image:
        pages = load_pages(name, numbers)
        images += pages
        if numbers is None and pages[0].n_pages > 1:
            print(
                f"phi4mm: {name}: the first of {pages[0].n_pages} frames is used", file=sys.stderr
            )
    return images


def _print_json(events: Iterator[Event]) -> None:
    collected = list(events)
    last = collected[-1]
    print(
        json.dumps(
            {
                "text": "".join(event.text for event in collected),
                "finish_reason": last.finish_reason,
                "usage": {**asdict(last.usage), "n_prompt": last.usage.n_prompt},
                "timings": asdict(last.timings),
            },
            ensure_ascii=False,
        )
    )


def _print_text(args: argparse.Namespace, events: Iterator[Event]) -> None:
    is_terminal = sys.stderr.isatty()
    if is_terminal and not args.no_display_prompt:
        for name in (*args.image, *args.audio):
            print(f"[{name}]", file=sys.stderr)
        print(f"> {args.prompt}", file=sys.stderr)
    try:
        for event in events:
            sys.stdout.write(event.text)
            sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
    if is_terminal:
        print(summary(event), file=sys.stderr)


def summary(event: Event) -> str:
    """One line: what went in, what came out, how fast."""
    usage, timings = event.usage, event.timings
    kinds = [("text", usage.n_text), ("image", usage.n_image), ("audio", usage.n_audio)]
    prompt = " + ".join(f"{n} {kind}" for kind, n in kinds if n)
    decode_rate = (usage.n_generated - 1) / timings.decode_s if timings.decode_s else 0.0
    refilled = f" · {usage.n_refilled} tokens computed again (RoPE)" if usage.n_refilled else ""
    return (
        f"[{prompt} tokens · encode {timings.encode_s:.2f} s · prefill {timings.prefill_s:.2f} s · "
        f"{usage.n_generated} tokens at {decode_rate:.1f}/s · {event.finish_reason}{refilled}]"
    )
