"""``phi4mm demo``: the built-in sample on a text, a picture, a clip, and a picture with a clip."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_model_options, open_model, sample_bundle

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM

_N_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to ask.

    Attributes:
        prompt: the words.
        images: picture files of the sample.
        audios: clip files of the sample.
    """

    prompt: str
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()


TASKS = (
    Task("Say something."),
    Task("What is shown in this image?", images=("picture.png",)),
    Task("Transcribe the audio clip into text.", audios=("clip.flac",)),
    Task("", images=("picture.png",), audios=("clip.flac",)),
)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "demo",
        help="answer a text, a picture, a clip and both with the built-in sample",
        description="Run the main job on the built-in sample, or on a bundle of your own (-m).",
    )
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show each task with its media, its answer and its counts."""
    with open_model(args) as model:
        for task in TASKS:
            _show(model, task, sample_bundle() / "media")
    return 0


def _show(model: Phi4MM, task: Task, folder: Path) -> None:
    from phi4mm.cli.run import summary
    from phi4mm.engine.parameters import SamplingParams
    from phi4mm.prompt.message import user_message

    names = ", ".join((*task.images, *task.audios))
    print(f"> {f'[{names}] ' if names else ''}{task.prompt}")
    message = user_message(
        task.prompt,
        images=[folder / name for name in task.images],
        audios=[folder / name for name in task.audios],
    )
    for event in model.generate([message], SamplingParams(max_tokens=_N_TOKENS)):
        sys.stdout.write(event.text)
        sys.stdout.flush()
    print(f"\n{summary(event)}\n")
