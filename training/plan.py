"""The stages: what each needs, how long it trains, how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from .geometry import Geometry
from .initial import initial_model
from .loop import Schedule, Stage
from .model import SampleModel
from .prompting import Conversation
from .stage_adapter import speech_adapter, vision_adapter
from .stage_audio_encoder import AudioEncoderStage
from .stage_mixed import MixedStage
from .stage_speech import SpeechStage
from .stage_text import TextStage
from .stage_vision import vision, vision_projector
from .stage_vision_encoder import VisionEncoderStage
from .tokenizer import Tokenizer

SYNTHESIS = "synthesis"
# Written by from_bundle.py: weights to begin from.
START = "start.safetensors"


@dataclass(frozen=True)
class StagePlan:
    """A stage before it is made: its schedule, the stages it needs, and its maker."""

    schedule: Schedule
    needs: tuple[str, ...]
    make: Callable[[Conversation, Path, Schedule], Stage]


# In the order in which their weights are laid over each other.
STAGES: dict[str, StagePlan] = {
    "text": StagePlan(Schedule(5400, 1e-3, warmup=200, decay=0.6), (), TextStage),
    "vision_encoder": StagePlan(Schedule(8500, 1e-3, warmup=100), (), VisionEncoderStage),
    "audio_encoder": StagePlan(Schedule(4900, 8e-4, warmup=100), (SYNTHESIS,), AudioEncoderStage),
    "vision_adapter": StagePlan(Schedule(4200, 1e-3, decay=0.7), ("text",), vision_adapter),
    "speech_adapter": StagePlan(Schedule(2300, 1e-3, decay=0.7), ("text",), speech_adapter),
    "vision_projector": StagePlan(
        Schedule(1050, 8e-4, decay=0.5), ("text", "vision_encoder"), vision_projector
    ),
    "vision": StagePlan(
        Schedule(1300, 8e-4, warmup=20, decay=0.8), ("vision_adapter", "vision_projector"), vision
    ),
    "speech": StagePlan(
        Schedule(6000, 8e-4, warmup=20, decay=0.8), ("speech_adapter", "audio_encoder"), SpeechStage
    ),
    "mixed": StagePlan(
        Schedule(3000, 5e-4, warmup=20, decay=0.8), ("vision", "speech"), MixedStage
    ),
}


def assemble(run_dir: Path, tokenizer: Tokenizer, stages: list[str]) -> SampleModel:
    """The initial model with the start and the given stages' float16 weights laid over it."""
    model = initial_model(Geometry(), tokenizer)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for path in [run_dir / START, *(run_dir / name / "weights.safetensors" for name in stages)]:
        if path.exists():
            weights = {name: t.view(shapes[name]) for name, t in load_file(str(path)).items()}
            model.load_state_dict(weights, strict=False)
    return model


def make_stage(name: str, run_dir: Path) -> Stage:
    """A stage on top of those before it."""
    tokenizer = Tokenizer.load()
    earlier = list(STAGES)[: list(STAGES).index(name)]
    talk = Conversation(assemble(run_dir, tokenizer, earlier), tokenizer)
    return STAGES[name].make(talk, run_dir, STAGES[name].schedule)
