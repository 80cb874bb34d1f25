"""Runs the stages in order, each from where it stopped: python -m training.run --run-dir DIR."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from .geometry import Geometry
from .initial import initial_model
from .loop import Loop, Schedule, Stage, Stopped
from .model import SampleModel
from .prompting import Conversation
from .speech_synthesis import synthesise
from .stage_audio_encoder import AudioEncoderStage
from .stage_mixed import MixedStage
from .stage_speech import SpeechStage
from .stage_text import TextStage
from .stage_vision import VisionStage
from .stage_vision_encoder import VisionEncoderStage
from .tokenizer import Tokenizer

Maker = Callable[[Conversation, Path], Stage]
STAGES: dict[str, Maker] = {
    "text": lambda talk, _: TextStage(talk, Schedule(1500, 1e-3, warmup=200)),
    "vision_encoder": lambda talk, _: VisionEncoderStage(
        talk.model, Schedule(9000, 1e-3, warmup=100)
    ),
    "vision": lambda talk, run_dir: VisionStage(talk, run_dir, Schedule(9000, 8e-4)),
    "audio_encoder": lambda talk, run_dir: AudioEncoderStage(
        talk.model, run_dir, Schedule(9000, 8e-4, warmup=100)
    ),
    "speech": lambda talk, run_dir: SpeechStage(talk, run_dir, Schedule(5000, 8e-4)),
    "mixed": lambda talk, run_dir: MixedStage(talk, run_dir, Schedule(3000, 6e-4)),
}


def assemble(run_dir: Path, tokenizer: Tokenizer, stages: list[str]) -> SampleModel:
    """The initial model with the float16 weights of the given stages laid over it, in order."""
    model = initial_model(Geometry(), tokenizer)
    for name in stages:
        path = run_dir / name / "weights.safetensors"
        if path.exists():
            unknown = model.load_state_dict(load_file(str(path)), strict=False).unexpected_keys
            assert not unknown, f"{path}: {unknown}"
    return model


def run_stage(name: str, run_dir: Path) -> None:
    """Train one stage on top of those before it."""
    tokenizer = Tokenizer.load()
    earlier = list(STAGES)[: list(STAGES).index(name)]
    talk = Conversation(assemble(run_dir, tokenizer, earlier), tokenizer)
    Loop(STAGES[name](talk, run_dir), run_dir).run()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="checkpoints, caches and logs")
    parser.add_argument("--stage", choices=list(STAGES), help="only this stage")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    try:
        if not arguments.stage:
            synthesise(arguments.run_dir)
        for name in [arguments.stage] if arguments.stage else STAGES:
            run_stage(name, arguments.run_dir)
    except Stopped:
        print("stopped; the same command goes on from here", flush=True)


if __name__ == "__main__":
    main()
