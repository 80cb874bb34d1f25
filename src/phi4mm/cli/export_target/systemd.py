"""``phi4mm export systemd``: a hardened unit for the server."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from phi4mm.cli.options import add_model_options
from phi4mm.cli.server_options import (
    add_address_options,
    add_server_options,
    refuse_keys,
    server_settings,
)
from phi4mm.errors import InputError

_EPILOG = """\
examples:
  phi4mm export systemd -m /srv/phi4mm-q4 -np 2 -o phi4mm.service
  systemd-analyze verify ./phi4mm.service
  sudo cp phi4mm.service /etc/systemd/system/ && sudo systemctl enable --now phi4mm
"""
_OWN = frozenset({"help", "output", "run_as", "api_key_file", "model"})
_READ = ("model", "mmproj", "vision_lora", "speech_lora", "media_path")
_PATHS = (*_READ, "encoder_cache")
_UNIT_NAME = re.compile(r"[\w.:-]+\.service", re.ASCII)


def add_parser(targets: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the target."""
    parser = targets.add_parser(
        "systemd",
        help="a hardened service of this machine",
        description="Write a systemd unit that runs `phi4mm serve` with the flags given here, "
        "under an account of its own that can read the model and listen, and do little else.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("phi4mm.service"),
        help="the unit (default: phi4mm.service)",
    )
    parser.add_argument("--run-as", metavar="USER", help="an account that exists (default: none)")
    add_model_options(parser)
    add_address_options(parser.add_argument_group("address"))
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the unit."""
    from phi4mm.export.systemd import Service, unit_text
    from phi4mm.measurement.staged_file import staged_file

    for name in _PATHS:
        if getattr(args, name) is not None:
            setattr(args, name, getattr(args, name).absolute())
    refuse_keys(args)
    if not _UNIT_NAME.fullmatch(args.output.name):
        raise InputError(
            f"-o {args.output}: the name of a unit has letters, digits and '-_.:', and ends in "
            ".service"
        )
    settings = server_settings(args)
    model = settings.bundle.model
    service = Service(
        name=args.output.name,
        command=[sys.executable, "-m", "phi4mm", "serve", "-m", str(model), *_flags(args)],
        paths=(
            Path(sys.executable),
            *(getattr(args, name) for name in _READ if getattr(args, name) is not None),
        ),
        cache=args.encoder_cache,
        user=args.run_as,
        key_file=None if args.api_key_file is None else args.api_key_file.absolute(),
        uses_accelerator=settings.engine.offload != type(settings.engine.offload)(),
    )
    text = unit_text(service)
    with staged_file(args.output) as stream:
        stream.write(text.encode())
    print(f"{args.output}: its first lines say how to install it")
    return 0


def _flags(args: argparse.Namespace) -> Iterator[str]:
    """The flags of the server that were given, as they are written on a command line."""
    for action in args.parser._actions:
        value = getattr(args, action.dest, None)
        if action.dest in _OWN or not action.option_strings or value in (action.default, None):
            continue
        flag = action.option_strings[-1]
        if isinstance(action, argparse._StoreTrueAction):
            yield flag
        elif isinstance(action, argparse._AppendAction):
            yield from (word for item in value for word in (flag, str(item)))
        elif action.nargs == "+":
            yield from (flag, *map(str, value))
        else:
            yield from (flag, ",".join(value) if isinstance(value, tuple) else str(value))
