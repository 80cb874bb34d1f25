"""``phi4mm export llama.cpp``: exact commands for its own programs."""

from __future__ import annotations

import argparse

from phi4mm.cli.export_target.bundle_export import (
    add_bundle_arguments,
    add_pictures_argument,
    present,
    stock_model,
)


def add_parser(targets: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the target."""
    parser = targets.add_parser(
        "llama.cpp",
        help="llama-server and llama-cli: the commands, a chat template with tools, adapters",
        description="Write a chat template and a script that starts llama-server with the decoder "
        "and adapters of a bundle, and say what stock llama.cpp cannot do.",
    )
    add_bundle_arguments(parser, "folder for template and script (default: they are shown)")
    add_pictures_argument(parser, "by default it is written with -o")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write them, or show them."""
    from phi4mm.export.llama_cpp import llama_cpp_export

    with stock_model(args.bundle) as model:
        present(llama_cpp_export(model, args.output, args.with_pictures), args.output)
    return 0
