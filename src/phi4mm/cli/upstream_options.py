"""Flags of a server whose answers come from another engine."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from phi4mm.cli.server_options import api_keys
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.upstream.settings import UpstreamSettings

_KEY_VARIABLE: Final = "PHI4MM_UPSTREAM_API_KEY"
_OWN: Final = frozenset({"upstream", "upstream_model"})
# What has a meaning where the model is not run here.
_MEANINGFUL: Final = _OWN | {
    "engine", "host", "port", "log_format", "served_model_name", "api_key_file", "max_body",
    "max_media", "timeout",
}  # fmt: skip


def add_upstream_options(group: argparse._ArgumentGroup) -> None:
    """Which engine, and where it is."""
    group.add_argument(
        "--engine",
        choices=("local", "vllm"),
        default="local",
        help="what answers: this program, or a vLLM server behind it (default: local)",
    )
    group.add_argument(
        "--upstream",
        metavar="URL",
        help=f"with --engine vllm: where it listens (its API key: ${_KEY_VARIABLE})",
    )
    group.add_argument(
        "--upstream-model",
        metavar="NAME",
        default="phi4-mm",
        help="with --engine vllm: its --served-model-name (default: phi4-mm)",
    )


def refuse_upstream_flags(args: argparse.Namespace) -> None:
    """Refuse flags that have no meaning without another engine.

    Raises:
        InputError: there is one.
    """
    _refuse(args, _given(args) & _OWN, "without --engine vllm")


def upstream_settings(args: argparse.Namespace) -> UpstreamSettings:
    """The flags, checked.

    Raises:
        InputError: one is missing, out of range, or has no meaning here.
    """
    from phi4mm.upstream.settings import UpstreamSettings

    _refuse(args, _given(args) - _MEANINGFUL, "with --engine vllm: the model is not run here")
    if args.upstream is None:
        raise InputError("--engine vllm needs --upstream URL: where vLLM listens")
    parts = urlsplit(args.upstream)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise InputError(f"--upstream is {args.upstream!r}: give a URL, http://HOST:PORT")
    for name in ("max_body", "max_media", "timeout"):
        if getattr(args, name) <= 0:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is {getattr(args, name)}: give more than 0")
    return UpstreamSettings(
        url=args.upstream.rstrip("/").removesuffix("/v1"),
        upstream_key=os.environ.get(_KEY_VARIABLE) or None,
        base_model=args.upstream_model,
        served_name=args.served_model_name,
        api_keys=api_keys(args),
        cors_origins=tuple(args.cors_origin),
        body_bytes=args.max_body << 20,
        n_media=args.max_media,
        request_s=args.timeout,
    )


def _given(args: argparse.Namespace) -> set[str]:
    """The settings that were given as flags."""
    given: set[str] = getattr(args, "_given", set())
    return given


def _refuse(args: argparse.Namespace, names: set[str] | frozenset[str], why: str) -> None:
    if names:
        flag = min(names).replace("_", "-")
        raise InputError(f"--{flag} has no meaning {why}")
