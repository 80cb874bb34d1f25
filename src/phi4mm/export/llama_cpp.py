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


def llama_cpp_export(model: StockModel, folder: Path | None) -> ExportSet:
    """A template, a script that starts llama-server, and the commands.

    Args:
        model: the parts.
        folder: where they will be; None if they are only shown.
    """
    template = (folder or Path()).absolute() / TEMPLATE_FILE
    server = _server(model, template)
    script = "#!/bin/sh\nexec " + " \\\n  ".join(_grouped(server)) + ' "$@"\n'
    one_shot = ["llama-cli", "-m", str(model.decoder), "-c", str(model.n_ctx), "--temp", "0",
                "--jinja", "--chat-template-file", str(template)]  # fmt: skip
    return ExportSet(
        texts={TEMPLATE_FILE: CHAT_TEMPLATE, SCRIPT: script},
        scripts=frozenset({SCRIPT}),
        commands=(shlex.join(server), shlex.join(one_shot)),
        notes=(*model.notes("llama.cpp", "-c"), *_adapter_notes(model)),
    )


def _server(model: StockModel, template: Path) -> list[str]:
    command = ["llama-server", "-m", str(model.decoder), "--alias", MODEL_NAME]
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


def _adapter_notes(model: StockModel) -> tuple[str, ...]:
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
    return tuple(notes)
