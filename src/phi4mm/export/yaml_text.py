"""Plain values as YAML in block form, for files that people will edit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Value: TypeAlias = "Mapping[str, Value] | Sequence[Value] | str | int | float | bool | None"

# Words that need no quotation marks; some of them would be read as something else.
_PLAIN = re.compile(r"(?!(y|n|yes|no|on|off|true|false|null)$)[a-z_][a-z0-9_]*")


def yaml_text(value: Mapping[str, Value]) -> str:
    """A document; texts and numbers are written as in JSON, which YAML reads."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{indent}{_key(key)}:", item, indent + "  ")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _item(item, indent)


def _key(key: str) -> str:
    return key if _PLAIN.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _entry(head: str, item: Value, indent: str) -> Iterator[str]:
    if _is_block(item):
        yield head
        yield from _lines(item, indent)
    else:
        yield f"{head} {json.dumps(item, ensure_ascii=False)}"


def _item(item: Value, indent: str) -> Iterator[str]:
    if not _is_block(item):
        yield f"{indent}- {json.dumps(item, ensure_ascii=False)}"
        return
    first, *others = _lines(item, indent + "  ")
    yield f"{indent}- {first.lstrip()}"
    yield from others


def _is_block(item: Value) -> bool:
    return isinstance(item, Mapping | Sequence) and not isinstance(item, str) and len(item) > 0
