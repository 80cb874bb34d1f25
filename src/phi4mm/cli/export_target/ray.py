"""``phi4mm export ray``: a Serve config for a cluster."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_model_options
from phi4mm.cli.server_options import add_server_options, refuse_keys, server_settings

if TYPE_CHECKING:
    from phi4mm.deploy.settings import ReplicaSettings

_EPILOG = """\
examples:
  phi4mm export ray -m /srv/phi4mm-q4 --max-replicas 4 --cpus 8 -o phi4mm-ray.yaml
  serve run phi4mm-ray.yaml
"""
_PATHS = (
    "model", "mmproj", "vision_lora", "speech_lora", "api_key_file", "encoder_cache", "media_path"
)  # fmt: skip


def add_parser(targets: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the target."""
    parser = targets.add_parser(
        "ray",
        help="Ray Serve: replicas of the server on one or many hosts",
        description="Write a Ray Serve config: replicas of the server, as many as the work needs. "
        "The flags of `phi4mm serve` say what each replica is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the config (default: standard output)"
    )
    _add_scale_options(parser.add_argument_group("cluster"))
    add_model_options(parser)
    add_server_options(parser)
    parser.set_defaults(run=run)


def _add_scale_options(group: argparse._ArgumentGroup) -> None:
    for flag, kind, default, text in (
        ("--min-replicas", int, 1, "always running"),
        ("--max-replicas", int, 1, "most of them, when there is work"),
        ("--cpus", float, 1.0, "cores of a replica"),
        ("--gpus", float, 0.0, "accelerators of a replica"),
        ("--fronts", int, 1, "processes that take requests"),
        ("--port", int, 8000, "of the proxies"),
    ):
        group.add_argument(
            flag, metavar="N", type=kind, default=default, help=f"{text} (default: {default:g})"
        )
    group.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")


def run(args: argparse.Namespace) -> int:
    """Write the config."""
    from phi4mm.deploy.settings import to_values
    from phi4mm.export.ray import Scale, serve_config
    from phi4mm.measurement.staged_file import staged_file

    settings = _replica_settings(args)
    scale = Scale(args.min_replicas, args.max_replicas, args.cpus, args.gpus, args.fronts)
    name = "FILE" if args.output is None else args.output.name
    slots = settings.server.engine.n_slots
    text = serve_config(to_values(settings), scale, slots, name, args.host, args.port)
    if args.output is None:
        print(text, end="")
    else:
        with staged_file(args.output) as stream:
            stream.write(text.encode())
        print(f"{args.output}: start it with `serve run {shlex.quote(str(args.output))}`")
    return 0


def _replica_settings(args: argparse.Namespace) -> ReplicaSettings:
    """The flags, with paths that mean the same on every host."""
    from phi4mm.deploy.settings import ReplicaSettings

    for name in _PATHS:
        if getattr(args, name) is not None:
            setattr(args, name, getattr(args, name).absolute())
    refuse_keys(args)
    server = server_settings(args)
    return ReplicaSettings(replace(server, api_keys=()), args.api_key_file)
