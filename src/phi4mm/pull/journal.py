"""What of a conversion is done, kept beside it and found again after an interruption."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from phi4mm.pull.growing import part_path


@dataclass(slots=True)
class Journal:
    """What of the work is done.

    Attributes:
        layout: of the plan.
        commit: of the repository.
        done: weight files whose tensors are all written, or kept in ``held``.
        traits: of the tensors in them, for the identity of the checkpoint.
        held: data of small tensors that are written together with one of a later file, by
            ``FILE/NAME``.
    """

    layout: str
    commit: str
    done: list[str] = field(default_factory=list)
    traits: dict[str, bytes] = field(default_factory=dict)
    held: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def find(cls, path: Path, layout: str, commit: str) -> Journal:
        """The journal at a path if it is of the same plan and commit, else an empty one."""
        try:
            found = json.loads(path.read_text())
            journal = cls(
                found["layout"],
                found["commit"],
                found["done"],
                _decoded(found["traits"]),
                _decoded(found["held"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(layout, commit)
        is_same = (journal.layout, journal.commit) == (layout, commit)
        return journal if is_same else cls(layout, commit)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        content = {
            "layout": self.layout,
            "commit": self.commit,
            "done": self.done,
            "traits": _encoded(self.traits),
            "held": _encoded(self.held),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = part_path(path)
        with part.open("w") as stream:
            json.dump(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)


def _encoded(values: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in values.items()}


def _decoded(values: dict[str, str]) -> dict[str, bytes]:
    return {name: base64.b64decode(data) for name, data in values.items()}
