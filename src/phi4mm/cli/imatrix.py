"""``phi4mm imatrix``: what the decoder's matrices are multiplied with, on text and on media."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.options import add_offload_options, add_threads_option, offload
from phi4mm.cli.progress import progress_bar
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.quantize.calibration import Calibration, Conversation
    from phi4mm.quantize.collect import Collected

_DESCRIBE = "Describe the image in detail."
_EPILOG = """\
Everything given is added up in one matrix; each token counts once. Some hundred chunks of text like
what the model will be used for are enough. Pictures and clips are computed with the adapter that a
request with them uses. Collect from the bundle with F16 weights; Q8_0 serves as well.

a manifest has one JSON object in each line, paths relative to it; what is not needed is left out:
  {"image": "a.png", "audio": "a.wav", "prompt": "How many?", "answer": "Three."}
  {"system": "Be brief.", "tools": "[{...}]", "prompt": "A timer for 5 minutes.", "answer": "..."}

examples:
  phi4mm imatrix bundle -f calibration.txt -o imatrix.gguf
  phi4mm imatrix bundle -f calibration.txt --images photos --audio talks -o imatrix.gguf
  phi4mm imatrix bundle --conversations asked.jsonl -o imatrix.gguf
  phi4mm quantize bundle Q4_K_M -o bundle-q4 --imatrix imatrix.gguf
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "imatrix",
        help="collect an importance matrix for phi4mm quantize",
        description="Compute text, pictures and clips with the decoder and keep, for every column "
        "of every matrix, the mean square of what it is multiplied with. The file is the one of "
        "llama.cpp's tools.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder or decoder file")
    parser.add_argument("-f", "--file", metavar="TEXT", type=Path, help="text file, UTF-8")
    parser.add_argument(
        "--conversations",
        metavar="MANIFEST",
        type=Path,
        help="questions with their pictures and clips, and answers (JSON lines)",
    )
    parser.add_argument(
        "--images", metavar="DIR", type=Path, help="folder of pictures, each to be described"
    )
    parser.add_argument(
        "--audio", metavar="DIR", type=Path, help="folder of clips, each to be transcribed"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the importance matrix"
    )
    parser.add_argument(
        "-c", "--ctx-size", metavar="N", type=int, help="tokens of a chunk of the text (512)"
    )
    parser.add_argument(
        "--chunks", metavar="N", type=int, help="most chunks of the text (default: all)"
    )
    add_threads_option(parser)
    add_offload_options(parser, with_encoders=True)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Collect and write; the bar goes to stderr, the summary to stdout."""
    from phi4mm.quantize.collect import collect_imatrix
    from phi4mm.quantize.imatrix_file import check_target, write_imatrix

    calibration = _calibration(args)
    check_target(args.output)
    with progress_bar("collecting", unit="tokens") as progress:
        collected = collect_imatrix(
            args.bundle,
            calibration,
            n_threads=args.threads,
            offload=offload(args),
            progress=progress,
        )
    write_imatrix(collected.imatrix, args.output)
    print(f"{args.output}: {summary(calibration, collected)}")
    return 0


def _calibration(args: argparse.Namespace) -> Calibration:
    from phi4mm.quantize.calibration import DEFAULT_CHUNK_SIZE, Calibration

    sources = (args.file, args.conversations, args.images, args.audio)
    given = [source for source in sources if source is not None]
    if not given:
        raise InputError(
            "nothing to compute: give a text (-f), --conversations, --images or --audio"
        )
    if args.file is None:
        for flag, value in (("-c", args.ctx_size), ("--chunks", args.chunks)):
            if value is not None:
                raise InputError(f"{flag} has no meaning without a text (-f)")
    return Calibration(
        datasets=tuple(source.name for source in given),
        text=args.file,
        chunk_size=DEFAULT_CHUNK_SIZE if args.ctx_size is None else args.ctx_size,
        max_chunks=args.chunks,
        conversations=tuple(_conversations(args)),
    )


def _conversations(args: argparse.Namespace) -> Iterator[Conversation]:
    from phi4mm.quantize.calibration import conversations_about, read_conversations
    from phi4mm.transcribe.task import TRANSCRIBE

    if args.conversations is not None:
        yield from read_conversations(args.conversations)
    if args.images is not None:
        yield from conversations_about(args.images, "image", _DESCRIBE)
    if args.audio is not None:
        yield from conversations_about(args.audio, "audio", TRANSCRIBE.prompt)


def summary(calibration: Calibration, collected: Collected) -> str:
    """What was computed: matrices, chunks, conversations, tokens with each adapter."""
    imatrix, n_talks = collected.imatrix, len(calibration.conversations)
    parts = [f"{len(imatrix.sums)} matrices"]
    if n_chunks := imatrix.n_chunks - n_talks:
        parts.append(f"{n_chunks} chunks of {imatrix.chunk_size} tokens")
    if n_talks:
        parts.append(f"{n_talks} conversations")
        parts += [
            f"{n} tokens with {f'the {name}' if name else 'no'} adapter"
            for name, n in collected.n_tokens.items()
        ]
    return ", ".join(parts)
