"""Sets of items, one for each thing a model was taught, and what it must reach on them.

A folder of sets has a manifest for each and ``abilities.json``, which names them::

    {"phi4mm_abilities": 1, "abilities": [
        {"name": "read", "title": "read text in pictures", "kind": "questions",
         "manifest": "read.jsonl", "max_tokens": 96, "bar": 0.9}]}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from phi4mm.errors import InputError
from phi4mm.evals.manifest import ClipItem, Item, read_clips, read_questions
from phi4mm.json_lines import read_utf8
from phi4mm.modality import Adapter, mode_of

Kind = Literal["questions", "clips"]
INDEX: Final = "abilities.json"
_FORMAT: Final = 1
_TYPES: Final = {
    "name": (str,),
    "title": (str,),
    "kind": (str,),
    "manifest": (str,),
    "max_tokens": (int,),
    "bar": (float, int, type(None)),
}


@dataclass(frozen=True, slots=True)
class Ability:
    """What a model was taught, and how well it must know it.

    Attributes:
        name: short, for programs.
        title: for people.
        kind: questions are right or wrong; clips have a word error rate.
        items: what is asked.
        max_tokens: longest answer.
        bar: share of right answers that must be reached, or word error rate that must not be
            exceeded; None for no bar.
    """

    name: str
    title: str
    kind: Kind
    items: tuple[Item, ...]
    max_tokens: int
    bar: float | None

    @property
    def adapter(self) -> Adapter | None:
        """The adapter that its items are answered with."""
        first = self.items[0]
        if isinstance(first, ClipItem):
            return mode_of(n_images=0, n_audios=1).adapter
        return mode_of(n_images=len(first.images), n_audios=len(first.audios)).adapter

    def is_reached(self, score: float) -> bool | None:
        """Whether a score clears the bar; None where there is none."""
        if self.bar is None:
            return None
        return score <= self.bar if self.kind == "clips" else score >= self.bar


def read_abilities(folder: Path) -> list[Ability]:
    """The sets of a folder.

    Raises:
        InputError: ``abilities.json`` or a manifest cannot be read, or something in it is wrong.
    """
    path = folder / INDEX
    try:
        values = json.loads(read_utf8(path))
        entries = values["abilities"] if values["phi4mm_abilities"] == _FORMAT else None
    except (ValueError, KeyError, TypeError):
        entries = None
    if not (isinstance(entries, list) and entries):
        raise InputError(f"{path}: not a list of abilities (format {_FORMAT})")
    abilities = [_ability(path, entry) for entry in entries]
    if len({ability.name for ability in abilities}) < len(abilities):
        raise InputError(f"{path}: two abilities have the same name, names must differ")
    return abilities


def _ability(path: Path, entry: Any) -> Ability:
    if not isinstance(entry, dict) or entry.keys() != _TYPES.keys():
        wanted = ", ".join(_TYPES)
        raise InputError(f"{path}: an ability is {str(entry)[:60]!r}, must have {wanted}")
    for name, types in _TYPES.items():
        if not isinstance(entry[name], types) or isinstance(entry[name], bool):
            raise InputError(f"{path}: {name!r} is {entry[name]!r}")
    if entry["kind"] not in get_args(Kind):
        allowed = " or ".join(get_args(Kind))
        raise InputError(f"{path}: 'kind' is {entry['kind']!r}, must be {allowed}")
    manifest = path.parent / entry["manifest"]
    items = read_clips(manifest) if entry["kind"] == "clips" else read_questions(manifest)
    return Ability(
        name=entry["name"],
        title=entry["title"],
        kind=cast(Kind, entry["kind"]),
        items=tuple(items),
        max_tokens=entry["max_tokens"],
        bar=entry["bar"],
    )
