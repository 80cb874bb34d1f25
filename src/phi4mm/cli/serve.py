"""``phi4mm serve``: the OpenAI API from one bundle."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_model_options, bundle_path
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.server.settings import ServerSettings

_DRAIN_S = 60


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "serve",
        help="answer over HTTP, as OpenAI's API does",
        description="Serve the OpenAI API: chat with pictures and clips, tools, transcription.",
    )
    add_model_options(parser)
    _add_server_options(parser.add_argument_group("server"))
    _add_safety_options(parser.add_argument_group("safety"))
    parser.set_defaults(run=run)


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, help="0 takes a free one (default: 8080)")
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
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="default: text"
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
        "--max-audio", metavar="S", type=float, default=3600, help="seconds of a clip"
    )
    group.add_argument(
        "--max-media", metavar="N", type=int, default=32, help="pictures and clips of a request"
    )
    group.add_argument(
        "--timeout", metavar="S", type=float, default=3600, help="seconds for a request"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; running answers are finished first."""
    import uvicorn

    from phi4mm.server.app import make_app
    from phi4mm.server.service import Service

    service = Service(_settings(args))
    _log_to_stderr(args.log_format)
    _require_free(args.host, args.port)
    config = uvicorn.Config(
        make_app(service),
        host=args.host,
        port=args.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    # uvicorn raises the signal again once all is done: then this ends the process as it should be
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    uvicorn.Server(config).run()
    return 0


def _require_free(host: str, port: int) -> None:
    """Look at the port before anything is loaded.

    Raises:
        InputError: somebody else has it, or the host is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host} port {port}: {reason}") from None


def _settings(args: argparse.Namespace) -> ServerSettings:
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
            n_gpu_layers=args.n_gpu_layers,
            type_k=args.cache_type_k,
            type_v=args.cache_type_v,
            flash_attention=args.flash_attn,
            n_slots=args.parallel,
            n_long_slots=args.parallel_long,
            max_waiting=args.max_waiting,
            encoder_cache_dir=args.encoder_cache,
        ),
        served_name=args.served_model_name,
        api_keys=_api_keys(args),
        cors_origins=tuple(args.cors_origin),
        limits=Limits(
            body_bytes=args.max_body << 20,
            image_pixels=args.max_pixels,
            audio_seconds=args.max_audio,
            n_media=args.max_media,
            request_s=args.timeout,
        ),
        media=MediaAccess(
            hosts=tuple(host.lower() for host in args.allow_media_url), path=args.media_path
        ),
    )


def _api_keys(args: argparse.Namespace) -> tuple[str, ...]:
    keys = [*args.api_key, *os.environ.get("PHI4MM_API_KEY", "").split(",")]
    if args.api_key_file is not None:
        try:
            keys += args.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            raise InputError(f"--api-key-file {args.api_key_file}: cannot be read") from None
    found = tuple(key.strip() for key in keys if key.strip())
    if args.api_key_file is not None and not found:
        raise InputError(f"--api-key-file {args.api_key_file}: holds no key")
    return found


class _JsonFormatter(logging.Formatter):
    """One JSON object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("request_id", "seconds"):
            if hasattr(record, name):
                entry[name] = getattr(record, name)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _log_to_stderr(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
