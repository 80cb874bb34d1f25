"""``phi4mm compare``: every type of one bundle in a table, measured against the source."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.compute_options import (
    add_compute_options,
    add_parse_special_option,
    compute_params,
)
from phi4mm.cli.options import add_offload_options, offload
from phi4mm.cli.progress import stage
from phi4mm.cli.table import byte_size
from phi4mm.errors import InputError
from phi4mm.markdown import markdown_table

if TYPE_CHECKING:
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.evals.material import Material
    from phi4mm.evals.type_table import TypeRow, TypeTableRequest
    from phi4mm.modelfile.bundle import Bundle

_DEFAULT_CTX = 512
_EPILOG = """\
Each row is on disk as soon as it is measured: the same command goes on where it was stopped, and
with more types it adds them. The tables are Markdown. base.logits in the folder, 400 kB for each
scored token of the real vocabulary, is made anew if it is missing.

examples:
  phi4mm compare bundle -f wiki.test.raw --chunks 20 -o types
  phi4mm compare bundle --conversations asked.jsonl -o types
  phi4mm compare bundle -f text.txt -o types --types Q4_K_M,Q3_K_M --imatrix imatrix.gguf --keep
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "compare",
        help="measure all types of one bundle: size, perplexity, divergence, errors",
        description="Quantise the decoder of a bundle with F16, BF16 or F32 weights to one type "
        "after another, and compare each with the source on a text, or on the answers of "
        "conversations: size, bits per weight, perplexity, divergence, and the error of each group "
        "of matrices.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_compute_options(parser)
    parser.add_argument("-f", "--file", metavar="TEXT", type=Path, help="text file, UTF-8")
    parser.add_argument(
        "--conversations",
        metavar="MANIFEST",
        type=Path,
        help="in place of a text: conversations as for phi4mm imatrix, whose answers are scored, "
        "with pictures and clips through the adapters",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="folder for the rows"
    )
    parser.add_argument(
        "--types", metavar="TYPE,...", help="types to measure (default: all but the source's own)"
    )
    parser.add_argument(
        "--imatrix",
        metavar="FILE",
        type=Path,
        help="importance matrix; types that it changes are measured without and with it",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the bundles, all parts of them, each with its divergence for phi4mm card",
    )
    parser.add_argument(
        "-c",
        "--ctx-size",
        metavar="N",
        type=int,
        help=f"tokens of a chunk of the text ({_DEFAULT_CTX})",
    )
    parser.add_argument("--chunks", metavar="N", type=int, help="most chunks (default: all)")
    add_parse_special_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_offload_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; bars go to stderr, the tables to stdout."""
    from phi4mm.evals.type_table import compare_types
    from phi4mm.modelfile.bundle import Bundle

    _check_flags(args)
    params = compute_params(args, offload=offload(args))
    with Bundle.open(args.bundle) as bundle, _material(args, bundle, params) as material:
        rows = compare_types(bundle, args.output, _request(args, bundle, material), params, stage)
    print(json.dumps({"rows": [asdict(row) for row in rows]}) if args.json else to_markdown(rows))
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that are missing or would have no effect."""
    if (args.file is None) == (args.conversations is None):
        raise InputError("give a text (-f) or --conversations")
    if args.conversations is None:
        return
    idle = {
        "-c": args.ctx_size is not None,
        "--chunks": args.chunks is not None,
        "--parse-special": args.parse_special,
    }
    for flag, is_given in idle.items():
        if is_given:
            raise InputError(f"{flag} has no meaning without a text (-f)")


@contextmanager
def _material(args: argparse.Namespace, bundle: Bundle, params: EngineParams) -> Iterator[Material]:
    """What the types are compared on."""
    from phi4mm.evals.material import AnswersMaterial, TextMaterial, answers_run
    from phi4mm.quantize.calibration import read_conversations

    if args.file is not None:
        n_ctx = _DEFAULT_CTX if args.ctx_size is None else args.ctx_size
        yield TextMaterial(bundle, params, args.file, n_ctx, args.chunks, args.parse_special)
        return
    conversations = read_conversations(args.conversations)
    with answers_run(bundle, params) as run:
        yield AnswersMaterial(bundle, params, args.conversations.name, conversations, run)


def _request(args: argparse.Namespace, bundle: Bundle, material: Material) -> TypeTableRequest:
    from phi4mm.evals.type_table import TypeTableRequest, default_recipes
    from phi4mm.quantize.imatrix_file import read_imatrix
    from phi4mm.quantize.recipe import find_recipe

    recipes = default_recipes(bundle)
    if args.types is not None:
        recipes = tuple(find_recipe(name.strip()) for name in args.types.split(","))
        if len(set(recipes)) < len(recipes):
            raise InputError(f"--types is {args.types!r}: name each type once")
    return TypeTableRequest(
        material=material,
        recipes=recipes,
        imatrix=None if args.imatrix is None else (read_imatrix(args.imatrix), args.imatrix),
        keep=args.keep,
    )


def to_markdown(rows: Sequence[TypeRow]) -> str:
    """What each type takes and loses, then where it loses it."""
    plain = {row.name: row.kl for row in rows if not row.has_imatrix}
    header = ["type", "size", "bits per weight", "perplexity", "KL divergence", "99 %",
              "same top token"]  # fmt: skip
    cells = [[*_measured(row)] for row in rows]
    if any(row.has_imatrix for row in rows):
        header.append("KL without / with")
        cells = [[*line, _gain(row, plain)] for line, row in zip(cells, rows, strict=True)]
    groups = list(dict.fromkeys(name for row in rows for name in row.errors))
    errors = [
        [_title(row), *(_percent(row.errors.get(name)) for name in groups)]
        for row in rows
        if row.errors
    ]
    lines = [
        *markdown_table(header, cells),
        "",
        *markdown_table(["relative error", *groups], errors),
    ]
    return "\n".join(lines)


def _measured(row: TypeRow) -> Iterator[str]:
    yield _title(row)
    yield byte_size(row.n_bytes)
    yield f"{row.bits_per_weight:.2f}"
    yield f"{row.perplexity:.4f} ± {row.perplexity_error:.4f}"
    yield "" if row.kl is None else f"{row.kl:.6f} ± {row.kl_error:.6f}"
    yield "" if row.kl_99 is None else f"{row.kl_99:.6f}"
    yield _percent(row.same_top)


def _gain(row: TypeRow, plain: Mapping[str, float | None]) -> str:
    """By what factor the importance matrix lowers the divergence."""
    without = plain.get(row.name)
    return f"{without / row.kl:.2f}" if row.has_imatrix and without and row.kl else ""


def _title(row: TypeRow) -> str:
    return f"{row.name}, imatrix" if row.has_imatrix else row.name


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"
