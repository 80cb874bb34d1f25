"""``phi4mm imatrix``: what the decoder's matrices are multiplied with, collected from a text."""

from __future__ import annotations

import argparse
from pathlib import Path

from phi4mm.cli.options import add_gpu_layers_option, add_threads_option
from phi4mm.cli.progress import progress_bar

_EPILOG = """\
Some hundred chunks of text like what the model will be used for are enough. Collect from the bundle
with F16 weights; Q8_0 serves as well.

example:
  phi4mm imatrix bundle -f calibration.txt -o imatrix.gguf
  phi4mm quantize bundle Q4_K_M -o bundle-q4 --imatrix imatrix.gguf
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "imatrix",
        help="collect an importance matrix for phi4mm quantize",
        description="Compute a text with the decoder and keep, for every column of every matrix, "
        "the mean square of what it is multiplied with. The file is the one of llama.cpp's tools.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder or decoder file")
    parser.add_argument(
        "-f", "--file", metavar="TEXT", type=Path, required=True, help="text file, UTF-8"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the importance matrix"
    )
    parser.add_argument(
        "-c", "--ctx-size", metavar="N", type=int, default=512, help="tokens of a chunk (512)"
    )
    parser.add_argument("--chunks", metavar="N", type=int, help="most chunks (default: all)")
    add_threads_option(parser)
    add_gpu_layers_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Collect and write; the bar goes to stderr, one line to stdout."""
    from phi4mm.quantize.collect import collect_imatrix
    from phi4mm.quantize.imatrix_file import check_target, write_imatrix

    check_target(args.output)
    with progress_bar("collecting", unit="chunks") as progress:
        imatrix = collect_imatrix(
            args.bundle,
            args.file,
            chunk_size=args.ctx_size,
            max_chunks=args.chunks,
            n_threads=args.threads,
            n_gpu_layers=args.n_gpu_layers,
            progress=progress,
        )
    write_imatrix(imatrix, args.output)
    print(
        f"{args.output}: {len(imatrix.sums)} matrices, "
        f"{imatrix.n_chunks} chunks of {imatrix.chunk_size} tokens"
    )
    return 0
