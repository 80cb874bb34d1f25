"""``phi4mm devices``: what the native library can compute on."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from phi4mm.cli.table import byte_size, table

if TYPE_CHECKING:
    from phi4mm.native.device import Device
    from phi4mm.native.library import Library

_KINDS = {
    "cpu": "CPU",
    "gpu": "accelerator",
    "igpu": "accelerator, integrated",
    "accel": "helps the CPU",
    "meta": "several as one",
}
_NO_ACCELERATOR = (
    "no accelerator: decoder and encoders run on the CPU. "
    "docs/platforms.md lists libraries built for GPUs"
)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "devices",
        help="list the devices that can compute, for --device",
        description="List the devices that the native library finds: names for --device, memory, "
        "and the library itself.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The list, on stdout."""
    from phi4mm.native.device import list_devices
    from phi4mm.native.library import load

    library = load()
    devices = list_devices(library)
    print(_to_json(library, devices) if args.json else summary(library, devices))
    return 0


def _to_json(library: Library, devices: tuple[Device, ...]) -> str:
    described = {"carrier": library.carrier, "version": library.version, "path": library.path}
    listed = [asdict(d) | {"is_accelerator": d.is_accelerator} for d in devices]
    return json.dumps({"library": described, "devices": listed})


def summary(library: Library, devices: tuple[Device, ...]) -> str:
    """A line for each device, then the library."""
    lines = table([_row(device) for device in devices], right=(2, 3))
    if not any(device.is_accelerator for device in devices):
        lines.append(_NO_ACCELERATOR)
    lines.append(f"library: {library.carrier} {library.version}, {library.path}")
    return "\n".join(lines)


def _row(device: Device) -> tuple[str, ...]:
    memory = byte_size(device.n_bytes) if device.n_bytes else ""
    free = f"{byte_size(device.n_bytes_free)} free" if device.n_bytes else ""
    return (device.name, _KINDS[device.kind], memory, free, device.description)
