"""``phi4mm inspect``: what a GGUF file or a bundle holds, and what is missing or does not fit."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phi4mm.cli.table import byte_size, table

if TYPE_CHECKING:
    from phi4mm.inspection.bundle import Inspection
    from phi4mm.inspection.file import FileReport


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "inspect",
        help="show what a GGUF file or a bundle holds, and what is missing",
        description="Show parts, types, sizes, constants and identities, what is missing for "
        "pictures and sound, and what does not belong together. Files of other programs are "
        "described as far as they can be. The exit code is 2 if something is wrong.",
    )
    parser.add_argument("path", metavar="FILE|BUNDLE", type=Path, help="GGUF file or folder")
    parser.add_argument("--sha256", action="store_true", help="read the files whole for a hash")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Describe, on stdout."""
    from phi4mm.cli.main import EXIT_BAD_INPUT
    from phi4mm.inspection import inspect_path

    with _without_warnings():
        inspection = inspect_path(args.path, with_sha256=args.sha256)
    if args.json:
        print(json.dumps(inspection.as_dict(), ensure_ascii=False))
    else:
        print(summary(inspection))
    return EXIT_BAD_INPUT if inspection.faults else 0


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Opening a bundle warns on stderr of what the report says anyway."""
    logger = logging.getLogger("phi4mm.modelfile")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def summary(inspection: Inspection) -> str:
    """A table of the files, their constants, and the findings."""
    header = ("", "part", "types", "size", "bits/weight", "bundle id")
    lines = table([header, *map(_row, inspection.files)], right=(3, 4))
    for file in inspection.files:
        lines += _details(file)
    if inspection.answers or len(inspection.families) > 1:
        lines.append("")
    if len(inspection.families) > 1:
        lines += map(_family, inspection.families.items())
    if inspection.beside:
        lines.append(
            f"used with it, from its folder: {', '.join(p.name for p in inspection.beside)}"
        )
    for kind, missing in inspection.answers.items():
        lines.append(f"answers {kind}: {'yes' if missing is None else f'no: {missing}'}")
    lines += [f"warning: {text}" for text in inspection.warnings]
    lines += [f"fault: {text}" for text in inspection.faults]
    return "\n".join(lines)


def _family(family: tuple[str, tuple[Path, ...]]) -> str:
    bundle_id, paths = family
    names = ", ".join(path.name for path in paths)
    return f"of one model ({bundle_id}): {names}" if bundle_id else f"names no model: {names}"


def _row(file: FileReport) -> tuple[str, ...]:
    types = ", ".join(f"{use.n_tensors} {name}" for name, use in (file.types or {}).items())
    bits = "" if file.bits_per_weight is None else f"{file.bits_per_weight:.2f}"
    return (file.path.name, file.title, types, byte_size(file.n_bytes), bits, file.bundle_id or "-")


def _details(file: FileReport) -> Iterator[str]:
    yield ""
    by = "" if file.fingerprint is None or file.is_own else ", made by another program"
    yield f"{file.path.name}: {file.title}{by}"
    if file.fingerprint is not None:
        yield f"  fingerprint {file.fingerprint}"
    if file.sha256 is not None:
        yield f"  sha256 {file.sha256}"
    for group, constants in (file.constants or {}).items():
        yield f"  {group}: {_words(constants)}"
    for lack in file.lacks:
        yield f"  lacks {lack}"


def _words(constants: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(x)}" for name, x in constants.items() if x is not None)


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "/".join(map(_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
