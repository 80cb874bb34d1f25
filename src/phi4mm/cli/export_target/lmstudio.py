"""``phi4mm export lmstudio``: the folders that LM Studio looks into."""

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
        "lmstudio",
        help="LM Studio: its folder layout, with a link to the decoder",
        description="Put a link to the decoder of a bundle where LM Studio looks for models, or "
        "show the command that does it, and say what LM Studio cannot do.",
    )
    add_bundle_arguments(
        parser, "LM Studio's models folder, such as ~/.lmstudio/models (default: only shown)"
    )
    add_pictures_argument(
        parser,
        "by default it is written with -o where the vision adapter is merged into the decoder",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the link, or show the command."""
    from phi4mm.export.lmstudio import lmstudio_export

    with stock_model(args.bundle) as model:
        present(lmstudio_export(model, args.output, args.with_pictures), args.output)
    return 0
