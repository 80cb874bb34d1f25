"""``phi4mm card``: the model card of a bundle, from measurements on disk."""

from __future__ import annotations

import argparse
from pathlib import Path

_FOLDER = "measurements"
_EPILOG = f"""\
Records are what perplexity, eval, bench, plan and verify write with -o. Without --records, those in
BUNDLE/{_FOLDER} are read. A record of other files is refused.

example:
  phi4mm bench -m bundle -o bundle/{_FOLDER}/bench.json
  phi4mm card bundle -o bundle/README.md
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "card",
        help="write a bundle's model card from its measurements",
        description="Write a model card in Markdown: files, sizes, memory, perplexity, "
        "evaluation, speed, usage. Nothing in it is typed by hand.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="its folder")
    parser.add_argument(
        "--records", metavar="PATH", type=Path, action="append", help="file or folder; repeatable"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to this file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the card, to stdout or a file."""
    from phi4mm.cli.model_card import read_records, write_card
    from phi4mm.inspection import inspect_path
    from phi4mm.measurement.staged_file import staged_file
    from phi4mm.modelfile.bundle import Bundle

    default = args.bundle / _FOLDER
    records = read_records(args.records or ([default] if default.is_dir() else []))
    with Bundle.open(args.bundle) as bundle:
        card = write_card(bundle, inspect_path(args.bundle), records)
    if args.output is None:
        print(card)
        return 0
    with staged_file(args.output) as stream:
        stream.write(f"{card}\n".encode())
    return 0
