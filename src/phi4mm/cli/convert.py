"""``phi4mm convert``: a checkpoint, or a user's own adapter, into GGUF files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from phi4mm.cli.options import nonempty_path
from phi4mm.cli.progress import progress_bar
from phi4mm.cli.table import byte_size, table
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.convert import BundleReport, Progress
    from phi4mm.modelfile.ggml_type import GGMLType

TYPE_NAMES = ("f32", "f16", "bf16", "q8_0")
_EPILOG = """\
examples:
  phi4mm convert Phi-4-multimodal-instruct -o bundle
  phi4mm convert Phi-4-multimodal-instruct -o bundle --type q8_0
  phi4mm convert my-vision-lora --adapter-for bundle -o adapters
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "convert",
        help="make a bundle from a checkpoint, or an adapter file from a LoRA folder",
        description="Convert a checkpoint of Phi-4-multimodal (Microsoft's or transformers'\n"
        "layout) into a bundle of GGUF files. With --adapter-for, convert a PEFT LoRA\n"
        "folder for use with a bundle that exists.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="CHECKPOINT", type=nonempty_path, help="folder to convert"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=nonempty_path,
        required=True,
        help="folder for the files",
    )
    for flag, what, default in (
        ("--type", "decoder", "f16"),
        ("--mmproj-type", "encoders and projectors", "q8_0"),
        ("--lora-type", "adapters", "q8_0"),
    ):
        parser.add_argument(
            flag,
            choices=TYPE_NAMES,
            type=str.lower,
            help=f"element type of matrices of the {what} (default: {default})",
        )
    parser.add_argument(
        "--merge",
        choices=("vision", "speech"),
        help="add this adapter to the decoder's weights; the bundle then serves its mode alone",
    )
    parser.add_argument(
        "--adapter-for",
        metavar="BUNDLE",
        type=nonempty_path,
        help="CHECKPOINT is a PEFT LoRA folder for this bundle",
    )
    parser.add_argument(
        "--as",
        dest="adapter",
        choices=("vision", "speech"),
        help="which adapter it takes the place of (default: by the folder's name)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert; the bar goes to stderr, the summary to stdout."""
    _check_flags(args)
    with progress_bar("converting") as progress:
        report = _convert_adapter(args, progress) if args.adapter_for else _convert(args, progress)
    print(summary(report))
    return 0


def summary(report: BundleReport) -> str:
    """What a conversion did: a table of the files, then what became of the tensors."""
    rows = [
        (f.path.name, f.part, f.type_name, f"{f.n_tensors} tensors", byte_size(f.n_bytes))
        for f in report.files
    ]
    lines = table(rows)
    lines.append(
        f"in {report.files[0].path.parent}: {byte_size(sum(f.n_bytes for f in report.files))}"
    )
    if report.bundle_id is not None:
        lines.append(f"bundle id {report.bundle_id}")
    lines.append(f"{report.n_used} source tensors used, {sum(report.dropped.values())} dropped")
    lines += [f"  dropped {n}: {reason}" for reason, n in report.dropped.items()]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def _convert(args: argparse.Namespace, progress: Progress | None) -> BundleReport:
    from phi4mm.convert import PartTypes, convert_checkpoint

    types = PartTypes(
        decoder=_type(args.type or "f16"),
        mmproj=_type(args.mmproj_type or "q8_0"),
        lora=_type(args.lora_type or "q8_0"),
    )
    return convert_checkpoint(
        args.source, args.output, types=types, merge=args.merge, progress=progress
    )


def _convert_adapter(args: argparse.Namespace, progress: Progress | None) -> BundleReport:
    from phi4mm.convert import convert_adapter

    return convert_adapter(
        args.source,
        args.adapter_for,
        args.output,
        lora_type=_type(args.lora_type or "q8_0"),
        adapter=args.adapter,
        progress=progress,
    )


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that would have no effect."""
    if args.adapter_for:
        idle = {"--type": args.type, "--mmproj-type": args.mmproj_type, "--merge": args.merge}
        for flag, value in idle.items():
            if value is not None:
                raise InputError(f"{flag} has no meaning with --adapter-for")
    elif args.adapter is not None:
        raise InputError("--as has no meaning without --adapter-for")
    elif (args.source / "adapter_config.json").exists() and not (
        args.source / "config.json"
    ).exists():
        raise InputError(f"{args.source} is a LoRA adapter: say which bundle with --adapter-for")


def _type(name: str) -> GGMLType:
    from phi4mm.convert import TYPES

    return TYPES[name]
