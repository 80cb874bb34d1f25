"""``phi4mm pull``: a bundle from a repository of the model hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.convert import summary as conversion_summary
from phi4mm.cli.options import nonempty_path
from phi4mm.cli.progress import progress_bar
from phi4mm.cli.table import byte_size, table
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.convert.part_type import PartFormat, PartFormats
    from phi4mm.progress import Progress
    from phi4mm.pull.bundle import PulledBundle
    from phi4mm.pull.cache import Cache
    from phi4mm.pull.repository import Repository

_DEFAULT_TYPE = "Q8_0"
_EPILOG = """\
From a checkpoint the bundle is made while the files come: the disk holds the checkpoint, in the
hub's cache, and the bundle; with --stream the largest weight file and the bundle. A repository of
GGUF files is searched for those that belong together. Interrupted, the same command goes on.

The hub's own settings hold: HF_TOKEN or `hf auth login`, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE.

examples:
  phi4mm pull microsoft/Phi-4-multimodal-instruct --type Q4_K_M -o phi4mm-q4
  phi4mm pull microsoft/Phi-4-multimodal-instruct --type Q8_0 --stream -o phi4mm-q8
  phi4mm pull someone/Phi-4-multimodal-instruct-GGUF --type Q4_K_M -o phi4mm-q4
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "pull",
        help="download a checkpoint and make a bundle of it, or download a ready bundle",
        description="Get a bundle from a repository of the Hugging Face hub.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repository", metavar="OWNER/NAME", help="repository of the hub")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help=f"type of the decoder, such as Q4_K_M (default: {_DEFAULT_TYPE}, or the only one)",
    )
    parser.add_argument(
        "--mmproj-type", metavar="TYPE", help="type of the encoders (default: Q8_0)"
    )
    parser.add_argument("--lora-type", metavar="TYPE", help="type of the adapters (default: Q8_0)")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit (default: main)")
    parser.add_argument(
        "-o",
        "--output",
        "--out",
        metavar="DIR",
        type=nonempty_path,
        help="the bundle's folder (default: NAME-TYPE, here)",
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="do not keep the checkpoint: remove each weight file once it is converted",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pull; the bar goes to stderr, the summary to stdout."""
    from phi4mm.convert.output_folder import readable_os_errors
    from phi4mm.pull.cache import Cache
    from phi4mm.pull.repository import open_repository
    from phi4mm.pull.source import is_checkpoint

    cache = Cache.of_hub()
    repository = open_repository(args.repository, args.revision, cache)
    pull = _pull_checkpoint if is_checkpoint(repository) else _pull_bundle
    with readable_os_errors(), progress_bar("pulling") as progress:
        text = pull(args, repository, cache, progress)
    print(text)
    return 0


def _pull_checkpoint(
    args: argparse.Namespace, repository: Repository, cache: Cache, progress: Progress | None
) -> str:
    from phi4mm.pull.checkpoint import pull_checkpoint

    formats = _formats(args)
    out_dir = args.output or Path(f"{repository.name}-{formats.decoder.name}")
    if repository.is_online and not args.stream:
        cache.refer(repository.id, args.revision or "main", repository.commit)
    report = pull_checkpoint(
        repository, out_dir, formats, cache=cache, stream=args.stream, progress=progress
    )
    return conversion_summary(report)


def _pull_bundle(
    args: argparse.Namespace, repository: Repository, cache: Cache, progress: Progress | None
) -> str:
    from phi4mm.pull.bundle import pull_bundle
    from phi4mm.pull.gguf_choice import Wish

    if args.stream:
        raise InputError(f"--stream has no meaning for {repository.id}: it has no checkpoint")
    wish = Wish(args.type, args.mmproj_type, args.lora_type)
    suffix = f"-{args.type.upper()}" if args.type else ""
    out_dir = args.output or Path(f"{repository.name}{suffix}")
    return _bundle_summary(pull_bundle(repository, out_dir, wish, cache=cache, progress=progress))


def _formats(args: argparse.Namespace) -> PartFormats:
    from phi4mm.convert.part_type import PartFormats

    return PartFormats(
        _format(args.type or _DEFAULT_TYPE),
        _format(args.mmproj_type or "Q8_0"),
        _format(args.lora_type or "Q8_0"),
    )


def _format(name: str) -> PartFormat:
    """One of the types of ``phi4mm convert``, or of ``phi4mm quantize``."""
    from phi4mm.convert import TYPES
    from phi4mm.convert.part_type import OneType
    from phi4mm.native.library import load
    from phi4mm.quantize.recipe import find_recipe
    from phi4mm.quantize.recipe_format import RecipeFormat

    if name.lower() in TYPES:
        return OneType(TYPES[name.lower()])
    return RecipeFormat(find_recipe(name), load())


def _bundle_summary(pulled: PulledBundle) -> str:
    sizes = [path.stat().st_size for path in pulled.files]
    rows = [(p.name, byte_size(n)) for p, n in zip(pulled.files, sizes, strict=True)]
    lines = table(rows, right=(1,))
    lines.append(f"in {pulled.files[0].parent}: {byte_size(sum(sizes))}")
    if pulled.bundle_id is not None:
        lines.append(f"bundle id {pulled.bundle_id}")
    if pulled.left_out:
        lines.append(f"not part of it: {', '.join(pulled.left_out)}")
    lines += [f"warning: {warning}" for warning in pulled.warnings]
    return "\n".join(lines)
