"""How to start vLLM with the original checkpoint, so that the translator can stand before it.

Facts of the model's class and flags: vLLM 0.32 (``models/phi4mm.py``, ``config/lora.py``).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.errors import SettingError
from phi4mm.export.export_set import ExportSet
from phi4mm.export.stock import MODEL_NAME
from phi4mm.export.yaml_text import Value, yaml_text

REPOSITORY: Final = "microsoft/Phi-4-multimodal-instruct"
SCRIPT: Final = "vllm.sh"
COMPOSE_FILE: Final = "compose.yaml"
_MAX_CTX: Final = 131072
_ORIGINAL_CTX: Final = 4096
# The vision adapter has rank 256, the speech adapter 320: the larger counts.
_MAX_RANK: Final = 320
# 24 query heads and 8 key heads are shared out.
_TENSOR_PARALLEL: Final = (1, 2, 4, 8)
_IMAGE: Final = "vllm/vllm-openai:v0.33.0"


@dataclass(frozen=True, slots=True)
class Launch:
    """How vLLM is started.

    Attributes:
        model: a checkpoint's folder, or a repository of the hub.
        n_ctx: positions, prompt and answer together.
        tensor_parallel: accelerators that share each layer.
        data_parallel: copies of the model behind one endpoint.
        pipeline_parallel: accelerators that share the layers out; the model's class takes 1 only.
        with_ray: whether the accelerators are on several hosts of a Ray cluster.
        n_media: most pictures, and most clips, of a conversation.
        port: where it listens.
    """

    model: str = REPOSITORY
    n_ctx: int = _MAX_CTX
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    with_ray: bool = False
    n_media: int = 32
    port: int = 8000

    def __post_init__(self) -> None:
        """Refuse what vLLM or the model cannot do.

        Raises:
            SettingError: names the setting, its value and what would be right.
        """
        if self.tensor_parallel not in _TENSOR_PARALLEL:
            allowed = ", ".join(map(str, _TENSOR_PARALLEL))
            value = self.tensor_parallel
            raise SettingError("tensor_parallel", f"is {value}: the heads divide by {allowed}")
        if self.pipeline_parallel != 1:
            raise SettingError(
                "pipeline_parallel",
                f"is {self.pipeline_parallel}: vLLM's class of this model takes 1 only, use tensor "
                "or data parallel",
            )
        for name, low, high in (
            ("n_ctx", 1, _MAX_CTX),
            ("data_parallel", 1, 1024),
            ("n_media", 1, 1000),
            ("port", 1, 65535),
        ):
            if not low <= getattr(self, name) <= high:
                raise SettingError(name, f"is {getattr(self, name)}: it must be {low} to {high}")


def vllm_export(launch: Launch, folder: Path | None) -> ExportSet:
    """A script, for one host a compose file with the translator before vLLM, and the commands.

    Args:
        launch: the settings.
        folder: where the files will be; None if they are only shown.
    """
    texts = {SCRIPT: _script(launch)}
    if not launch.with_ray:
        texts[COMPOSE_FILE] = _compose(launch)
    return ExportSet(
        texts=texts,
        scripts=frozenset({SCRIPT}),
        commands=(
            shlex.quote(str((folder or Path()).absolute() / SCRIPT)),
            f"phi4mm serve --engine vllm --upstream http://localhost:{launch.port}",
        ),
        notes=tuple(_notes(launch)),
    )


def arguments(launch: Launch, model: str) -> list[str]:
    """What ``vllm serve`` is given after the model.

    Args:
        launch: the settings.
        model: where the checkpoint's folder is, for its adapters; may be a shell's variable.
    """
    limits = json.dumps({"image": launch.n_media, "audio": launch.n_media})
    words = [
        "--served-model-name", MODEL_NAME,
        "--trust-remote-code",
        "--dtype", "bfloat16",
        "--max-model-len", str(launch.n_ctx),
        "--enable-lora", "--max-loras", "2", "--max-lora-rank", str(_MAX_RANK),
        "--lora-modules", f"vision={model}/vision-lora", f"speech={model}/speech-lora",
        "--limit-mm-per-prompt", limits,
        "--tensor-parallel-size", str(launch.tensor_parallel),
        "--data-parallel-size", str(launch.data_parallel),
    ]  # fmt: skip
    if launch.with_ray:
        words += ["--distributed-executor-backend", "ray"]
        words += ["--data-parallel-backend", "ray"] if launch.data_parallel > 1 else []
    return [*words, "--port", str(launch.port)]


def _is_repository(model: str) -> bool:
    return not model.startswith((".", "/", "~"))


def _script(launch: Launch) -> str:
    fetched = f"$(hf download {shlex.quote(launch.model)} --quiet)"
    model = f'"{fetched}"' if _is_repository(launch.model) else shlex.quote(launch.model)
    words = [w if w.startswith("--") else f'"{w}"' if "$" in w else shlex.quote(w)
             for w in arguments(launch, "$model")]  # fmt: skip
    lines = ["#!/bin/sh", "set -eu"]
    if launch.with_ray:
        lines += [
            "# On the first host: ray start --head     on each other one: ray start "
            "--address=FIRST:6379",
            "# The checkpoint has the same path on all of them.",
        ]
    lines += [f"model={model}", 'exec vllm serve "$model" \\']
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    lines += [f"  {' '.join(group)} \\" for group in groups]
    return "\n".join([*lines, '  "$@"']) + "\n"


def _compose(launch: Launch) -> str:
    """Two services, vLLM and the translator; the checkpoint's folder is mounted."""
    n_gpus = launch.tensor_parallel * launch.data_parallel
    device: Value = {"driver": "nvidia", "count": n_gpus, "capabilities": ["gpu"]}
    service: Value = {
        "image": _IMAGE,
        "command": ["/model", *arguments(launch, "/model")],
        "volumes": ["${PHI4MM_CHECKPOINT:?the folder of the checkpoint}:/model:ro"],
        "ipc": "host",
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://localhost:{launch.port}/health"],
            "interval": "10s",
            "retries": 3,
            "start_period": "600s",
        },
    }
    front: Value = {
        "image": "${PHI4MM_IMAGE:-phi4mm}",
        "command": [
            "serve", "--engine", "vllm", "--upstream", f"http://vllm:{launch.port}",
            "--host", "0.0.0.0",
        ],
        "ports": ["8080:8080"],
        "depends_on": {"vllm": {"condition": "service_healthy"}},
    }  # fmt: skip
    return yaml_text({"services": {"vllm": service, "phi4mm": front}})


def _notes(launch: Launch) -> list[str]:
    notes = [
        "clients ask phi4mm (port 8080), not vLLM: it names the adapter by what a conversation "
        "holds, puts tools into the model's template and reads calls out of answers",
        "vLLM encodes clips by themselves: one beside a picture gets the projection for speech, "
        "where the model wants the one for vision; phi4mm's own engine does it right",
    ]
    if launch.n_ctx > _ORIGINAL_CTX:
        notes.append(
            f"vLLM chooses the RoPE factors by --max-model-len: {launch.n_ctx} means the long ones "
            f"for every prompt; --ctx-size {_ORIGINAL_CTX} gives the reference's answers to short "
            "prompts; phi4mm's own engine chooses by the length of each"
        )
    return notes
