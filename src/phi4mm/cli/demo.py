"""``phi4mm demo``: a picture, a clip, a spoken question and a tool request, answered and judged."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phi4mm.cli.options import add_model_options, open_model, sample_bundle

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM
    from phi4mm.engine.event import Event
    from phi4mm.evals.manifest import QuestionItem

_N_TOKENS = 96
_TASKS = "demo.jsonl"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a bundle answers to a task.

    Attributes:
        text: the answer, without blanks at its ends.
        is_right: whether it is one of the right ones.
        last: the event that ended it.
    """

    text: str
    is_right: bool
    last: Event


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "demo",
        help="answer a picture, a clip, a spoken question and a tool request",
        description="Ask the built-in sample, or a bundle of your own (-m), to read a picture, to "
        "write down a clip, to answer a spoken question about a picture, and to call a tool. Each "
        "answer is judged; the exit code is 0 whether they are right or wrong.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask every task; show it with its media, its answer and its counts."""
    from phi4mm.evals.manifest import read_questions

    tasks = read_questions(sample_bundle() / "media" / _TASKS)
    with open_model(args) as model:
        if args.json:
            print(json.dumps({"tasks": [_as_json(model, task) for task in tasks]}))
        else:
            for task in tasks:
                _show(model, task)
    return 0


def _lack(model: Phi4MM, task: QuestionItem) -> str | None:
    """What a bundle without all parts lacks for a task."""
    from phi4mm.modality import mode_of

    mode = mode_of(n_images=len(task.images), n_audios=len(task.audios))
    return model.bundle.missing_for(mode)


def _events(model: Phi4MM, task: QuestionItem) -> Iterator[Event]:
    from phi4mm.cli.stream import interruptible
    from phi4mm.engine.parameters import SamplingParams
    from phi4mm.evals.request import messages_of

    sampling = SamplingParams(max_tokens=_N_TOKENS)
    answer = interruptible(model.generate(messages_of(task), sampling), model.cancel)
    with closing(answer):
        yield from answer


def _judge(task: QuestionItem, events: list[Event]) -> Answer:
    from phi4mm.evals.answer_scores import SCORES

    text = "".join(event.text for event in events).strip()
    return Answer(text, SCORES[task.metric](text, task.answers) == 1, events[-1])


def _as_json(model: Phi4MM, task: QuestionItem) -> dict[str, Any]:
    asked = {
        "task": task.id,
        "prompt": task.question,
        "images": [Path(name).name for name in task.images],
        "audios": [Path(name).name for name in task.audios],
        "tools": json.loads(task.tools or "[]"),
        "right_answers": task.answers,
    }
    if reason := _lack(model, task):
        return {**asked, "error": reason}
    answer = _judge(task, list(_events(model, task)))
    return {
        **asked,
        "answer": answer.text,
        "is_right": answer.is_right,
        "finish_reason": answer.last.finish_reason,
        "usage": {**asdict(answer.last.usage), "n_prompt": answer.last.usage.n_prompt},
        "timings": asdict(answer.last.timings),
    }


def _show(model: Phi4MM, task: QuestionItem) -> None:
    from phi4mm.chat.terminal import PlainTerminal
    from phi4mm.cli.run import summary

    names = ", ".join(Path(name).name for name in (*task.images, *task.audios))
    print(f"--- {task.id}{f' [{names}]' if names else ''}")
    for name in task.images:
        _preview(Path(name))
    if task.tools:
        print(f"tools: {', '.join(tool['name'] for tool in json.loads(task.tools))}")
    if task.question:
        print(f"> {task.question}")
    if reason := _lack(model, task):
        print(f"not asked: {reason}\n")
        return
    events, screen = [], PlainTerminal(sys.stdin, sys.stdout, sys.stderr)
    for event in _events(model, task):
        events.append(event)
        screen.write(event.text)
    answer = _judge(task, events)
    print("\nright" if answer.is_right else f"\nwrong, right is: {task.answers[0]}")
    print(f"{summary(answer.last)}\n")


def _preview(path: Path) -> None:
    """The picture in half blocks, where a terminal shows colours."""
    from PIL import Image

    from phi4mm.chat.preview import colour_depth, half_blocks

    depth = colour_depth(os.environ) if sys.stdout.isatty() else None
    if depth is not None:
        with Image.open(path) as image:
            print("\n".join(half_blocks(image, depth)))
