"""The loop every stage shares: schedule, steps, log, evaluation, atomic checkpoints, resume.

A stage is a problem to be solved (what its loss is, which weights it trains); the loop knows
nothing of modalities. Data are seeded by the step at which a block of batches begins, so an
uninterrupted run repeats exactly; a resumed one begins a new block and differs from there.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Schedule:
    """Warm-up, a constant rate, then a straight fall to a fiftieth of it."""

    steps: int
    rate: float
    warmup: int = 60
    decay: float = 0.35

    def at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        left = (self.steps - step) / (self.steps * self.decay)
        return self.rate * min((step + 1) / self.warmup, max(0.02, min(1.0, left)))


@dataclass(frozen=True)
class Group:
    """Weights that share a multiple of the rate and a weight decay."""

    parameters: list[nn.Parameter]
    factor: float = 1.0
    decay: float = 0.0


class Stage(Protocol):
    """What a stage tells the loop."""

    name: str
    schedule: Schedule

    def groups(self) -> list[Group]: ...

    def batches(self, step: int) -> Iterator[Any]:
        """Batches from this step on, as many as the stage likes (it is asked again)."""

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, float]]: ...

    def evaluate(self, n: int) -> dict[str, Any]:
        """Figures on n development items."""

    def exported(self) -> Mapping[str, Tensor]:
        """Weights of the product that this stage trains, under their checkpoint names."""

    def state(self) -> dict[str, Any]:
        """Everything else that a resumed run needs: throw-away heads, the curriculum."""

    def restore(self, state: dict[str, Any]) -> None: ...


class Stopped(Exception):
    """The run was asked to end; its checkpoint is written."""


def write_atomically(path: Path, save: Any) -> None:
    """Call save(temporary path), then rename."""
    partial = path.with_name(path.name + ".partial")
    save(partial)
    os.replace(partial, path)


def is_finished(run_dir: Path, stage: str, schedule: Schedule) -> bool:
    """Whether a stage has run to the end of its schedule (a longer one makes it unfinished)."""
    marker = run_dir / stage / "finished.json"
    return marker.exists() and json.loads(marker.read_text())["steps"] >= schedule.steps


def saved_heads(run_dir: Path, stage: str) -> dict[str, Tensor]:
    """The throw-away heads of an earlier stage."""
    saved = torch.load(run_dir / stage / "checkpoint.pt", weights_only=False)
    return saved["state"]["heads"]


class Loop:
    """Runs one stage in its folder of the run directory."""

    def __init__(self, stage: Stage, run_dir: Path, save_every_s: float = 180) -> None:
        self.stage, self.folder = stage, run_dir / stage.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save_every_s = save_every_s
        groups = stage.groups()
        self.parameters = [p for group in groups for p in group.parameters]
        self.factors = [group.factor for group in groups]
        self.optimiser = torch.optim.AdamW(
            [{"params": g.parameters, "weight_decay": g.decay} for g in groups],
            betas=(0.9, 0.98),
            fused=True,
        )
        self.step, self.seconds = 0, 0.0
        self.means: dict[str, float] = {}
        self.stopping = False

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def resume(self) -> bool:
        """Take up the last checkpoint; False where there is none."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return False
        saved = torch.load(path, weights_only=False)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, saved["parameters"], strict=True):
                parameter.copy_(value)
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step, self.seconds, self.means = saved["step"], saved["seconds"], saved["means"]
        self.stage.restore(saved["state"])
        return True

    def save(self) -> None:
        """Write the checkpoint, and the product's weights in float16 beside it."""
        saved = {
            "parameters": [p.detach() for p in self.parameters],
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "means": self.means,
            "state": self.stage.state(),
        }
        write_atomically(self.folder / "checkpoint.pt", lambda path: torch.save(saved, path))
        weights = {n: t.detach().half().contiguous() for n, t in self.stage.exported().items()}
        write_atomically(
            self.folder / "weights.safetensors", lambda path: save_file(weights, str(path))
        )

    def record(self, **figures: Any) -> None:
        """One line of the stage's log, also shown."""
        line = json.dumps({"step": self.step, "minutes": round(self.seconds / 60, 2), **figures})
        print(self.stage.name, line, flush=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _train(self, batch: Any) -> None:
        began = time.process_time()
        rate = self.stage.schedule.at(self.step)
        for group, factor in zip(self.optimiser.param_groups, self.factors, strict=True):
            group["lr"] = rate * factor
        loss, figures = self.stage.loss(batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        for name, value in {"loss": loss.item(), **figures}.items():
            self.means[name] = 0.97 * self.means.get(name, value) + 0.03 * value
        self.step += 1
        self.seconds += time.process_time() - began

    def run(self, evaluate_every: int = 400, n_evaluated: int = 60) -> None:
        """Train to the end of the schedule; a request to end stops after the current step."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        if self.resume():
            self.record(resumed=True)
        saved_at = time.monotonic()
        while self.step < self.stage.schedule.steps:
            for batch in self.stage.batches(self.step):
                self._train(batch)
                if self.step % 25 == 0:
                    self.record(**{name: round(value, 4) for name, value in self.means.items()})
                if self.step % evaluate_every == 0:
                    self.record(development=self.stage.evaluate(n_evaluated))
                if time.monotonic() - saved_at > self.save_every_s or self.stopping:
                    self.save()
                    saved_at = time.monotonic()
                if self.stopping:
                    self.record(stopped=True)
                    raise Stopped
                if self.step >= self.stage.schedule.steps:
                    break
        self.save()
        self.record(finished=True, development=self.stage.evaluate(4 * n_evaluated))
        (self.folder / "finished.json").write_text(json.dumps({"steps": self.step}))
