"""``phi4mm export TARGET``: files that other programs read; a module for each target."""

from __future__ import annotations

import argparse
from importlib import import_module

TARGETS = ("ollama", "lmstudio", "llama_cpp", "vllm", "systemd", "ray")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its targets."""
    parser = verbs.add_parser(
        "export",
        help="write what other programs need to run the model or this server",
        description="Write files for a service manager, a cluster, or another engine.",
    )
    targets = parser.add_subparsers(dest="target", metavar="TARGET", required=True)
    for target in TARGETS:
        import_module(f"phi4mm.cli.export_target.{target}").add_parser(targets)
    for target_parser in targets.choices.values():
        target_parser.set_defaults(parser=target_parser)
