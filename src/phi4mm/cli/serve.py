"""``phi4mm serve``: the OpenAI API from one bundle."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_model_options
from phi4mm.cli.server_options import add_address_options, add_server_options, server_settings
from phi4mm.cli.upstream_options import (
    add_upstream_options,
    refuse_upstream_flags,
    upstream_settings,
)
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_DRAIN_S = 60

_log = logging.getLogger(__name__)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "serve",
        help="answer over HTTP, as OpenAI's API does",
        description="Serve the OpenAI API: chat with pictures and clips, tools, transcription.",
    )
    add_model_options(parser)
    add_address_options(parser.add_argument_group("address"))
    add_server_options(parser)
    add_upstream_options(parser.add_argument_group("another engine"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; running answers are finished first."""
    import uvicorn

    listener = _listen(args.host, args.port)
    with closing(listener):
        url = _url(args.host, listener.getsockname()[1])
        app = _translator(args, url) if args.engine == "vllm" else _server(args, url)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        # uvicorn raises the signal again once all is done: then this ends the process as it should
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def _server(args: argparse.Namespace, url: str) -> ASGIApp:
    """The server of a bundle."""
    from phi4mm.server.app import make_app
    from phi4mm.server.service import Service

    refuse_upstream_flags(args)
    service = Service(server_settings(args))
    _log_to_stderr(args.log_format)
    service.engine.on_ready = lambda: _log.info("ready: %s", url)
    _log.info("listening on %s, the model is loading", url)
    return make_app(service)


def _translator(args: argparse.Namespace, url: str) -> ASGIApp:
    """The translator in front of another engine."""
    from phi4mm.upstream.app import make_app

    settings = upstream_settings(args)
    _log_to_stderr(args.log_format)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    _log.info("listening on %s, answers come from %s", url, settings.url)
    return make_app(settings)


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before anything is loaded.

    Raises:
        InputError: somebody else has it, or the host is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host} port {port}: {reason}") from None


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # what it tells is told here
    logging.getLogger("phi4mm.native").setLevel(logging.ERROR)
