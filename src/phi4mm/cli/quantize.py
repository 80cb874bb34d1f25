"""``phi4mm quantize``: a bundle with smaller weights, and what that costs in exactness."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.progress import progress_bar
from phi4mm.cli.table import byte_size, table

if TYPE_CHECKING:
    from phi4mm.quantize.plan import Request
    from phi4mm.quantize.report import GroupReport, PartReport, QuantizeReport

_HEADER = ("", "types", "weights", "size", "bits/weight", "error", "weighted error")
_RIGHT = range(2, len(_HEADER))
_EPILOG = """\
types: F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q4_K_M Q4_K_S Q4_0 IQ4_XS Q3_K_M

The error of a group of matrices is the root mean square of what quantising changed, over that of
the weights. With an importance matrix, the weighted error counts each column as it does.

examples:
  phi4mm quantize bundle Q4_K_M -o bundle-q4
  phi4mm quantize bundle Q4_K_M -o bundle-q4 --imatrix imatrix.gguf
  phi4mm quantize bundle Q4_K_S -o bundle-q4 --tensor-type ffn_down=Q5_K --mmproj-type Q6_K
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "quantize",
        help="make a smaller bundle from one with F16, BF16 or F32 weights",
        description="Quantise the decoder of a bundle, and its other parts if asked to. Every "
        "decoder tensor gets the type and the bytes that llama-quantize gives it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder or decoder file")
    parser.add_argument("type", metavar="TYPE", help="type of the decoder, such as Q4_K_M")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="folder for the files"
    )
    for flag, what in (("--mmproj-type", "encoders and projectors"), ("--lora-type", "adapters")):
        parser.add_argument(
            flag, metavar="TYPE", help=f"type of the {what} (default: copied as they are)"
        )
    parser.add_argument(
        "--imatrix", metavar="FILE", type=Path, help="importance matrix of the decoder"
    )
    parser.add_argument(
        "--tensor-type",
        metavar="PATTERN=TYPE",
        action="append",
        default=[],
        help="type of the matrices whose names match a regular expression, in every part that is "
        "not copied; repeatable, the first match counts",
    )
    parser.add_argument("-t", "--threads", metavar="N", type=int, help="CPU threads (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Quantise; the bar goes to stderr, the summary to stdout."""
    from phi4mm.quantize.quantize import quantize_bundle

    request = _request(args)
    with progress_bar("quantising") as progress:
        report = quantize_bundle(
            args.bundle, args.output, request, n_threads=args.threads, progress=progress
        )
    print(summary(report))
    return 0


def summary(report: QuantizeReport) -> str:
    """A table of the files and their groups of matrices, then what a person should know."""
    rows = [_HEADER, *(row for part in report.parts for row in _part_rows(part))]
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    lines = table(rows, right=_RIGHT)
    total = byte_size(sum(part.n_bytes for part in report.parts))
    lines.append(f"in {report.parts[0].path.parent}: {total}")
    if report.bundle_id is not None:
        lines.append(f"bundle id {report.bundle_id}")
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def _part_rows(part: PartReport) -> list[tuple[str, ...]]:
    kind = f"{part.title}, copied" if part.is_copy else part.title
    size, bits = byte_size(part.n_bytes), f"{part.bits_per_weight:.2f}"
    return [
        (part.path.name, kind, "", size, bits, "", ""),
        *(_group_row(group) for group in part.groups),
    ]


def _group_row(group: GroupReport) -> tuple[str, ...]:
    types = ", ".join(f"{n} {type_.name}" for type_, n in group.types.items())
    error = weighted = ""
    if group.loss is not None:
        error = f"{group.loss.relative:.2%}"
        weighted = "" if group.loss.weighted is None else f"{group.loss.weighted:.2%}"
    size, bits = byte_size(group.n_bytes), f"{group.bits_per_weight:.2f}"
    return (f"  {group.name}", types, f"{group.n_weights:,}", size, bits, error, weighted)


def _request(args: argparse.Namespace) -> Request:
    from phi4mm.quantize.imatrix_file import read_imatrix
    from phi4mm.quantize.plan import Request
    from phi4mm.quantize.recipe import Override, find_recipe

    return Request(
        decoder=find_recipe(args.type),
        mmproj=find_recipe(args.mmproj_type) if args.mmproj_type else None,
        lora=find_recipe(args.lora_type) if args.lora_type else None,
        overrides=tuple(map(Override.parse, args.tensor_type)),
        imatrix=(read_imatrix(args.imatrix), args.imatrix) if args.imatrix else None,
    )
