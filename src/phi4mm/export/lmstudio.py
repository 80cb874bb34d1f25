"""The folder layout of LM Studio: PUBLISHER/MODEL/FILE, with a link for the decoder."""

from __future__ import annotations

from pathlib import Path

from phi4mm.export.export_set import ExportSet
from phi4mm.export.stock import StockModel

_PUBLISHER = "phi4mm"


def lmstudio_export(model: StockModel, folder: Path | None) -> ExportSet:
    """Links and commands.

    Args:
        model: the parts.
        folder: LM Studio's models folder; None if its own tool is to place the file.
    """
    repository = f"{_PUBLISHER}/{model.name}"
    is_placed = folder is not None
    commands = () if is_placed else (
        f"lms import {model.decoder} --symbolic-link --user-repo {repository} --yes",
    )  # fmt: skip
    return ExportSet(
        links={f"{repository}/{model.decoder.name}": model.decoder} if is_placed else {},
        commands=(*commands, f"lms load {model.name.lower()} --context-length {model.n_ctx}"),
        notes=(
            *model.notes("LM Studio", "--context-length"),
            "LM Studio takes no adapters for GGUF models: none acts",
        ),
    )
