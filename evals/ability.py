"""The abilities that are measured: what each set is called, how it is scored, its bar."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Line = dict[str, Any]  # one item, as a line of a manifest


@dataclass(frozen=True)
class Ability:
    """One set.

    name: of its manifest and of its items.
    title: for tables.
    kind: ``questions`` are right or wrong, ``clips`` have a word error rate.
    max_tokens: longest answer.
    bar: share of right answers to reach, or word error rate not to exceed; None for no bar.
    """

    name: str
    title: str
    kind: Literal["questions", "clips"]
    max_tokens: int
    bar: float | None = None


ABILITIES = (
    Ability("read", "read text in pictures", "questions", 96, 0.90),
    Ability("speech", "speech", "clips", 64, 0.08),
    Ability("spoken", "spoken question about a picture", "questions", 96, 0.80),
    Ability("typed", "typed question about a picture", "questions", 32, 0.92),
    Ability("facts_taught", "facts, as they were taught", "questions", 32, 0.97),
    Ability("facts", "facts, pairs held out", "questions", 32, 0.97),
    Ability("facts_reworded", "facts, in new words", "questions", 32),
    Ability("arithmetic", "arithmetic", "questions", 16, 0.90),
    Ability("tools", "tool calls", "questions", 96, 0.95),
    Ability("speech_disturbed", "speech with noise", "clips", 64),
    Ability("speech_8khz", "speech at 8 kHz", "clips", 64),
    Ability("speech_long", "speech of 20 to 38 s", "clips", 320),
    Ability("silence", "silence and noise: no words", "questions", 32),
)


def write_set(folder: Path, items: dict[str, list[Line]]) -> None:
    """A manifest for each ability that has items, and ``abilities.json``, which names them."""
    listed = [ability for ability in ABILITIES if items.get(ability.name)]
    for ability in listed:
        _write_lines(folder / f"{ability.name}.jsonl", items[ability.name])
    entries = [
        {"manifest": f"{ability.name}.jsonl", **{k: v for k, v in asdict(ability).items()}}
        for ability in listed
    ]
    text = json.dumps({"phi4mm_abilities": 1, "abilities": entries}, indent=1)
    (folder / "abilities.json").write_text(text + "\n", encoding="utf-8")


def _write_lines(path: Path, lines: Iterable[Line]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
