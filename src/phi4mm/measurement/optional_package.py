"""Packages that only some verbs need, and that an extra installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from phi4mm.errors import InputError

Extra = Literal["eval", "verify", "ray"]


def import_optional(module: str, extra: Extra) -> Any:
    """A module of a package that need not be installed.

    Raises:
        InputError: it is not installed; names the extra that brings it.
    """
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # the latter where a package beneath is broken
        package, reason = module.partition(".")[0], str(error).strip().splitlines()[-1:]
        raise InputError(
            f"{package} cannot be imported ({''.join(reason)}): pip install 'phi4mm[{extra}]'"
        ) from None
