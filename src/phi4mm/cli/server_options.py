"""Flags of a server: what ``serve`` takes, and what exports of a server write down."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import bundle_path, offload
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.server.settings import ServerSettings

_KEYS = "PHI4MM_API_KEY"


def add_address_options(group: argparse._ArgumentGroup) -> None:
    """Where it listens, and how it logs."""
    group.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, help="0 takes a free one (default: 8080)")
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="default: text"
    )


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """How many requests, and which."""
    _add_capacity_options(parser.add_argument_group("server"))
    _add_safety_options(parser.add_argument_group("safety"))


def _add_capacity_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-np",
        "--parallel",
        metavar="N",
        type=int,
        default=4,
        help="conversations at the same time within the original context (default: 4)",
    )
    group.add_argument(
        "--parallel-long",
        metavar="N",
        type=int,
        default=1,
        help="conversations at the same time beyond it (default: 1)",
    )
    group.add_argument(
        "--max-waiting",
        metavar="N",
        type=int,
        default=64,
        help="requests that may wait, more are answered 429 (default: 64)",
    )
    group.add_argument(
        "--encoder-cache",
        metavar="DIR",
        type=Path,
        help="folder that keeps encoded pictures and clips for the next start (default: none)",
    )
    group.add_argument(
        "--served-model-name", metavar="NAME", default="phi4-mm", help="default: phi4-mm"
    )


def _add_safety_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key",
        metavar="KEY",
        action="append",
        default=[],
        help="let in only who has it; repeatable (also: $PHI4MM_API_KEY, several by commas)",
    )
    group.add_argument("--api-key-file", metavar="FILE", type=Path, help="keys, one on each line")
    group.add_argument(
        "--cors-origin", metavar="URL", action="append", default=[], help="web page that may call"
    )
    group.add_argument(
        "--allow-media-url",
        metavar="HOST",
        nargs="+",
        default=[],
        help="hosts that pictures and clips may be fetched from, * for any (default: none)",
    )
    group.add_argument(
        "--media-path", metavar="DIR", type=Path, help="folder that file:// URLs may point into"
    )
    group.add_argument(
        "--max-body", metavar="MIB", type=int, default=64, help="of a request (default: 64)"
    )
    group.add_argument(
        "--max-pixels", metavar="N", type=int, default=100_000_000, help="of a picture"
    )
    group.add_argument(
        "--max-audio", metavar="S", type=float, default=3600, help="seconds of a clip or recording"
    )
    group.add_argument(
        "--max-media", metavar="N", type=int, default=32, help="pictures and clips of a request"
    )
    group.add_argument(
        "--timeout", metavar="S", type=float, default=3600, help="seconds for a request"
    )
    group.add_argument(
        "--log-contents",
        action="store_true",
        help="log what is asked and answered, 4 KiB of each (default: nothing of it)",
    )


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """The flags, checked.

    Raises:
        InputError: one is out of range, or a file cannot be read.
    """
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.server.settings import BundlePaths, Limits, MediaAccess, ServerSettings

    for name in ("max_body", "max_pixels", "max_audio", "max_media", "timeout"):
        if getattr(args, name) <= 0:
            raise InputError(
                f"--{name.replace('_', '-')} is {getattr(args, name)}: give more than 0"
            )
    if args.media_path is not None and not args.media_path.is_dir():
        raise InputError(f"--media-path {args.media_path}: no such folder")
    paths = BundlePaths(bundle_path(args), args.mmproj, args.vision_lora, args.speech_lora)
    return ServerSettings(
        bundle=paths,
        engine=EngineParams(
            n_ctx=args.ctx_size,
            n_threads=args.threads,
            offload=offload(args),
            type_k=args.cache_type_k,
            type_v=args.cache_type_v,
            flash_attention=args.flash_attn,
            n_slots=args.parallel,
            n_long_slots=args.parallel_long,
            max_waiting=args.max_waiting,
            encoder_cache_dir=args.encoder_cache,
        ),
        served_name=args.served_model_name,
        api_keys=api_keys(args),
        cors_origins=tuple(args.cors_origin),
        limits=Limits(
            body_bytes=args.max_body << 20,
            image_pixels=args.max_pixels,
            audio_seconds=args.max_audio,
            n_media=args.max_media,
            request_s=args.timeout,
        ),
        media=MediaAccess(
            hosts=tuple(host.lower() for host in args.allow_media_url),
            path=args.media_path,
            max_bytes=args.max_body << 20,
        ),
        log_contents=args.log_contents,
    )


def refuse_keys(args: argparse.Namespace) -> None:
    """For exports: keys would stand in a file that is passed on, or be left out unseen.

    Raises:
        InputError: there are keys other than in a file.
    """
    for given, name in ((args.api_key, "--api-key"), (os.environ.get(_KEYS), _KEYS)):
        if given:
            raise InputError(f"{name}: keys do not go into this file, use --api-key-file")


def api_keys(args: argparse.Namespace) -> tuple[str, ...]:
    """The keys of flags, file and environment.

    Raises:
        InputError: the file cannot be read, or holds none.
    """
    keys = [*args.api_key, *os.environ.get(_KEYS, "").split(",")]
    if args.api_key_file is not None:
        try:
            keys += args.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            raise InputError(f"--api-key-file {args.api_key_file}: cannot be read") from None
    found = tuple(key.strip() for key in keys if key.strip())
    if args.api_key_file is not None and not found:
        raise InputError(f"--api-key-file {args.api_key_file}: holds no key")
    return found
