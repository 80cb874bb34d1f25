"""Whether what will be written fits, before anything is fetched."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phi4mm.errors import InputError


@dataclass(frozen=True, slots=True)
class Need:
    """Something that will be written.

    Attributes:
        folder: where; it need not be there yet.
        n_bytes: how much more than is there now.
        what: for the message.
    """

    folder: Path
    n_bytes: int
    what: str


def check_room(needs: Sequence[Need]) -> None:
    """Check needs together, those on the same disk added up.

    Raises:
        InputError: a disk has less.
    """
    by_disk: dict[int, list[Need]] = {}
    for need in needs:
        by_disk.setdefault(_existing(need.folder).stat().st_dev, []).append(need)
    for together in by_disk.values():
        total = sum(need.n_bytes for need in together)
        free = shutil.disk_usage(_existing(together[0].folder)).free
        if free < total:
            parts = " and ".join(f"{_size(n.n_bytes)} for {n.what}" for n in together)
            raise InputError(
                f"{together[0].folder}: {_size(free)} are free, {parts} are needed: make room, "
                "or use --stream, a smaller --type, or a disk with more (--out, HF_HOME)"
            )


def _existing(folder: Path) -> Path:
    return next(p for p in (folder, *folder.absolute().parents) if p.exists())


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 10_000_000 else f"{n_bytes / 1e6:.2f} MB"
