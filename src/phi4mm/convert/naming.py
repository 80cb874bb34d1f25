"""Names of the files, by the GGUF naming convention: ``NAME-TYPE.gguf`` and its companions.

Readers recognise a part by its metadata, never by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from phi4mm.modality import Adapter

_HASH: Final = re.compile(r"[0-9a-f]{32,64}")  # MD5 to SHA-256, a git commit between


class TypeName(Protocol):
    """What a file is named after: an element type, or a recipe of several."""

    @property
    def name(self) -> str:
        """As files carry it, ``Q4_K_M``."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of one conversion.

    Attributes:
        folder: where the files go.
        name: what they are called; also ``general.name`` in their metadata.
    """

    folder: Path
    name: str

    def decoder(self, type_: TypeName) -> Path:
        """Path of the decoder."""
        return self.folder / f"{self.name}-{type_.name}.gguf"

    def mmproj(self, type_: TypeName) -> Path:
        """Path of the encoders and projectors."""
        return self.folder / f"mmproj-{self.name}-{type_.name}.gguf"

    def adapter(self, adapter: Adapter, type_: TypeName) -> Path:
        """Path of an adapter."""
        return self.folder / f"{self.name}-{adapter}-lora-{type_.name}.gguf"


def folder_name(path: Path) -> str | None:
    """What a folder is called; None if that only says which version of something it is.

    In the Hugging Face cache the folder is ``models--OWNER--NAME/snapshots/COMMIT``.
    """
    folder = path.resolve()
    if folder.parent.name == "snapshots" and "--" in folder.parent.parent.name:
        return folder.parent.parent.name.rpartition("--")[2]
    return None if _HASH.fullmatch(folder.name) else folder.name


def checkpoint_name(path: Path, config: Mapping[str, object], merge: Adapter | None) -> str:
    """The name of a model: its folder's, else what its config.json calls it."""
    name = folder_name(path) or _name_in(config)
    return slug(name if merge is None else f"{name}-{merge}-merged")


def _name_in(config: Mapping[str, object]) -> str:
    """The last part of the path or repository that a config.json names, else the model's kind."""
    for key in ("_name_or_path", "model_type"):
        name = Path(str(config.get(key, ""))).name
        if name and not _HASH.fullmatch(name):
            return name
    return ""


def adapter_name(path: Path, adapter: Adapter) -> str:
    """The name of a user's adapter: its folder's, without the suffix that is added again."""
    name = slug(folder_name(path) or "adapter")
    return re.sub(rf"(^|[-_.]){adapter}[-_]?lora$", "", name, flags=re.IGNORECASE) or "adapter"


def slug(name: str) -> str:
    """``name`` with everything but letters, digits, ``.``, ``_`` and ``-`` turned into ``-``."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
