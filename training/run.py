"""Runs the stages in order, each from where it stopped: python -m training.run --run-dir DIR."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from .geometry import Geometry
from .initial import initial_model
from .loop import Loop, Schedule, Stage, Stopped
from .model import SampleModel
from .stage_audio_encoder import AudioEncoderStage
from .stage_mixed import MixedStage
from .stage_speech import SpeechStage
from .stage_text import TextStage
from .stage_vision import VisionStage
from .stage_vision_encoder import VisionEncoderStage
from .tokenizer import Tokenizer

Maker = Callable[[SampleModel, Tokenizer, Path], Stage]
STAGES: dict[str, Maker] = {
    "text": lambda model, tokenizer, run_dir: TextStage(model, tokenizer, Schedule(2600, 1.4e-3)),
    "vision_encoder": lambda model, tokenizer, run_dir: VisionEncoderStage(
        model, Schedule(9000, 1e-3, warmup=100)
    ),
    "vision": lambda model, tokenizer, run_dir: VisionStage(
        model, tokenizer, run_dir, Schedule(9000, 8e-4)
    ),
    "audio_encoder": lambda model, tokenizer, run_dir: AudioEncoderStage(
        model, run_dir, Schedule(9000, 8e-4, warmup=100)
    ),
    "speech": lambda model, tokenizer, run_dir: SpeechStage(
        model, tokenizer, run_dir, Schedule(5000, 8e-4)
    ),
    "mixed": lambda model, tokenizer, run_dir: MixedStage(
        model, tokenizer, run_dir, Schedule(3000, 6e-4)
    ),
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


def run_stage(name: str, run_dir: Path, tokenizer: Tokenizer) -> None:
    """Train one stage on top of those before it."""
    earlier = list(STAGES)[: list(STAGES).index(name)]
    model = assemble(run_dir, tokenizer, earlier)
    Loop(STAGES[name](model, tokenizer, run_dir), run_dir).run()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="checkpoints, caches and logs")
    parser.add_argument("--stage", choices=list(STAGES), help="only this stage")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.load(arguments.run_dir / "tokenizer.json")
    try:
        for name in [arguments.stage] if arguments.stage else STAGES:
            run_stage(name, arguments.run_dir, tokenizer)
    except Stopped:
        print("stopped; the same command goes on from here", flush=True)


if __name__ == "__main__":
    main()
