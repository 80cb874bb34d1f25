"""The folder layout of LM Studio: PUBLISHER/MODEL/FILE, with a link for the decoder."""

from __future__ import annotations

import shlex
from pathlib import Path

from phi4mm.export.export_set import ExportSet
from phi4mm.export.stock import StockModel

_PUBLISHER = "phi4mm"


def lmstudio_export(model: StockModel, folder: Path | None, with_pictures: bool) -> ExportSet:
    """Links and commands; the encoder for pictures with a decoder that the vision adapter is in.

    Args:
        model: the parts.
        folder: LM Studio's models folder; None if its own tool is to place the file.
        with_pictures: whether the encoder for pictures is written, if the vision adapter is merged.
    """
    repository = f"{_PUBLISHER}/{model.name}"
    is_placed = folder is not None
    can_see = with_pictures and model.merged == "vision" and model.vision is not None
    sees = can_see and is_placed
    commands = () if is_placed else (
        f"lms import {shlex.quote(str(model.decoder))} --symbolic-link --yes "
        f"--user-repo {repository}",
    )  # fmt: skip
    return ExportSet(
        links={f"{repository}/{model.decoder.name}": model.decoder} if is_placed else {},
        weights=model.mmproj(f"{repository}/{model.mmproj_name}") if sees else {},
        commands=(*commands, f"lms load {model.name.lower()} --context-length {model.n_ctx}"),
        notes=(
            *model.notes("LM Studio", "--context-length", can_see=can_see, sees=sees),
            *_adapter_notes(model),
        ),
    )


def _adapter_notes(model: StockModel) -> tuple[str, ...]:
    if model.merged is not None:
        return ()
    return (
        "LM Studio takes no adapters for GGUF models: none acts; for pictures, convert with "
        "--merge vision and export that bundle",
    )
