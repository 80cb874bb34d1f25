"""Reads vocabulary.json: words, prompts, facts, tools, and which combinations are held out."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "dev", "test"]
PATH = Path(__file__).with_name("vocabulary.json")


@lru_cache(maxsize=1)
def vocabulary() -> dict[str, Any]:
    """The file's contents."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def split_of(*parts: object) -> Split:
    """The split a combination belongs to; the same on every machine and in every session."""
    digest = hashlib.md5("|".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()
    bucket, rule = int(digest, 16) % 100, vocabulary()["split"]
    if bucket < rule["test"]:
        return "test"
    return "dev" if bucket < rule["test"] + rule["dev"] else "train"


def prompt(name: str) -> str:
    """The fixed prompt of a task: ``picture`` or ``clip``."""
    return vocabulary()["prompts"][name]
