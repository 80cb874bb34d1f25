"""``phi4mm export ollama``: a Modelfile."""

from __future__ import annotations

import argparse

from phi4mm.cli.export_target.bundle_export import (
    add_bundle_arguments,
    add_pictures_argument,
    present,
    stock_model,
)
from phi4mm.errors import InputError


def add_parser(targets: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the target."""
    parser = targets.add_parser(
        "ollama",
        help="Ollama: a Modelfile with template, stops, parameters, and an adapter if wanted",
        description="Write a Modelfile for the decoder of a bundle, and say what Ollama cannot do.",
    )
    add_bundle_arguments(parser, "folder for the Modelfile (default: it is shown)")
    parser.add_argument(
        "--adapter",
        choices=("vision", "speech"),
        help="let this adapter act on every answer (default: none)",
    )
    add_pictures_argument(parser, "by default it is written with -o and --adapter vision")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write it, or show it."""
    from phi4mm.export.ollama import ollama_export

    with stock_model(args.bundle) as model:
        if args.adapter is not None and args.adapter not in model.adapters:
            raise InputError(f"{args.bundle}: has no {args.adapter} adapter: leave --adapter out")
        export = ollama_export(model, args.output, args.adapter, args.with_pictures)
        present(export, args.output)
    return 0
