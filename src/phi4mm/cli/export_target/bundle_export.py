"""What the exports of a bundle share: their arguments, and how they are written or shown."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import nonempty_path
from phi4mm.cli.progress import progress_bar

if TYPE_CHECKING:
    from phi4mm.export.export_set import ExportSet
    from phi4mm.export.stock import StockModel


def add_bundle_arguments(parser: argparse.ArgumentParser, folder_help: str) -> None:
    """The bundle, and the folder."""
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=nonempty_path, help="folder or decoder file"
    )
    add_folder_argument(parser, folder_help)


def add_pictures_argument(parser: argparse.ArgumentParser, where: str) -> None:
    """The encoder for pictures."""
    parser.add_argument(
        "--no-mmproj",
        dest="with_pictures",
        action="store_false",
        help=f"write no encoder for pictures (0.9 GB for the real model); {where}",
    )


def add_folder_argument(parser: argparse.ArgumentParser, folder_help: str) -> None:
    """The folder alone."""
    parser.add_argument(
        "-o", "--output", "--out", metavar="DIR", type=nonempty_path, help=folder_help
    )


@contextmanager
def stock_model(path: Path) -> Iterator[StockModel]:
    """The parts of a bundle that stock llama.cpp loads; open within the block."""
    from phi4mm.export.stock import StockModel
    from phi4mm.modelfile.bundle import Bundle

    with Bundle.open(path) as bundle:
        yield StockModel.of(bundle)


def present(export: ExportSet, folder: Path | None) -> None:
    """Write an export into a folder, or show it; then what to type, and what is not possible."""
    from phi4mm.export.export_set import write_export

    if folder is None:
        lines = list(_shown(export))
    else:
        with progress_bar("exporting") as progress:
            lines = write_export(export, folder, progress)
    lines += ["", *export.commands, ""] if export.commands else []
    lines += [f"note: {note}" for note in export.notes]
    print("\n".join(lines))


def _shown(export: ExportSet) -> Iterator[str]:
    for name, text in export.texts.items():
        yield f"# {name}"
        yield text
