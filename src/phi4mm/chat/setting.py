"""The settings of ``/set``: their names, and how their values are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from phi4mm.chat.session import ContextShift, Session
from phi4mm.errors import InputError, SettingError


def _optional_int(text: str) -> int | None:
    return None if text == "none" else int(text)


# name -> (field of SamplingParams, reader)
_SAMPLING: dict[str, tuple[str, Callable[[str], Any]]] = {
    "temp": ("temperature", float),
    "top-k": ("top_k", int),
    "top-p": ("top_p", float),
    "min-p": ("min_p", float),
    "seed": ("seed", _optional_int),
    "n": ("max_tokens", _optional_int),
}
KEYS = (*_SAMPLING, "context-shift")


def change_setting(session: Session, assignment: str) -> None:
    """Carry out ``key=value``.

    Raises:
        InputError: the key is unknown, or the value is none of its values.
    """
    key, equals, value = assignment.partition("=")
    if not equals or key not in KEYS:
        raise InputError(f"/set {assignment}: write one of {', '.join(KEYS)}, = and a value")
    if key == "context-shift":
        if value not in get_args(ContextShift):
            raise InputError(f"context-shift {value!r}: use off or oldest")
        session.context_shift = "oldest" if value == "oldest" else "off"
        return
    field, read = _SAMPLING[key]
    try:
        parsed = read(value)
    except ValueError:
        raise InputError(f"{key} {value!r}: give a number") from None
    try:
        session.sampling = replace(session.sampling, **{field: parsed})
    except SettingError as error:
        raise InputError(f"{key} {error.problem}") from None


def show_settings(session: Session) -> str:
    """All settings on one line, as ``/set`` takes them."""
    values = {key: getattr(session.sampling, field) for key, (field, _) in _SAMPLING.items()}
    pairs = [f"{key}={'none' if value is None else value}" for key, value in values.items()]
    return " ".join([*pairs, f"context-shift={session.context_shift}"])
