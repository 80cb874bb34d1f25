"""Commands for llama.cpp's own programs, and the chat template they are given."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from phi4mm.export.chat_template import CHAT_TEMPLATE
from phi4mm.export.export_set import ExportSet
from phi4mm.export.stock import MODEL_NAME, StockModel
from phi4mm.modality import Adapter

TEMPLATE_FILE: Final = "phi4mm.jinja"
SCRIPT: Final = "llama-server.sh"


def llama_cpp_export(model: StockModel, folder: Path | None, with_pictures: bool) -> ExportSet:
    """A template, a script that starts llama-server, the encoder for pictures, the commands.

    Args:
        model: the parts.
        folder: where they will be; None if they are only shown.
        with_pictures: whether the encoder for pictures is written, if the vision adapter can act.
    """
    can_act = "vision" in (*_loadable(model), model.merged)
    can_see = with_pictures and can_act and model.vision is not None
    sees = can_see and folder is not None
    place = (folder or Path()).absolute()
    template = place / TEMPLATE_FILE
    mmproj = place / model.mmproj_name if sees else None
    server = _server(model, template, mmproj)
    script = "#!/bin/sh\nexec " + " \\\n  ".join(_grouped(server)) + ' "$@"\n'
    one_shot = ["llama-cli", "-m", str(model.decoder), "-c", str(model.n_ctx), "--temp", "0",
                "--jinja", "--chat-template-file", str(template)]  # fmt: skip
    return ExportSet(
        texts={TEMPLATE_FILE: CHAT_TEMPLATE, SCRIPT: script},
        scripts=frozenset({SCRIPT}),
        weights=model.mmproj(model.mmproj_name) if sees else {},
        commands=(shlex.join(server), shlex.join(one_shot)),
        notes=(
            *model.notes("llama.cpp", "-c", can_see=can_see, sees=sees),
            *_adapter_notes(model, sees),
        ),
    )


def _server(model: StockModel, template: Path, mmproj: Path | None) -> list[str]:
    command = ["llama-server", "-m", str(model.decoder), "--alias", MODEL_NAME]
    if mmproj is not None:
        command += ["--mmproj", str(mmproj)]
    if adapters := _loadable(model):
        # With --lora-init-without-apply, a request that names no adapter is given all of them.
        scaled = ",".join(f"{path}:0" for path in adapters.values())
        command += ["--lora-scaled", scaled]
    return [*command, "-c", str(model.n_ctx), "-np", "1", "--jinja", "--chat-template-file",
            str(template)]  # fmt: skip


def _loadable(model: StockModel) -> dict[Adapter, Path]:
    """The adapters whose paths hold none of the characters that the flag takes for its own."""
    return {n: path for n, path in model.adapters.items() if not set(str(path)) & set(",:")}


def _grouped(command: Sequence[str]) -> list[str]:
    """Each flag with its value, quoted for a shell."""
    groups: list[list[str]] = []
    for word in command:
        if word.startswith("-") or not groups:
            groups.append([])
        groups[-1].append(word)
    return [shlex.join(group) for group in groups]


def _adapter_notes(model: StockModel, sees: bool) -> tuple[str, ...]:
    notes = [
        f"{path} is not loaded: --lora-scaled takes no path with ',' or ':'"
        for name, path in model.adapters.items()
        if name not in _loadable(model)
    ]
    if loadable := _loadable(model):
        ids = ", ".join(f"{i} is {name}" for i, name in enumerate(loadable))
        notes.append(
            "the adapters are loaded and do not act; a request lets one act with "
            f'"lora": [{{"id": N, "scale": 1}}] ({ids})'
        )
        if sees and "vision" in loadable:
            notes.append("a request with a picture must let the vision adapter act, like that")
    return tuple(notes)
