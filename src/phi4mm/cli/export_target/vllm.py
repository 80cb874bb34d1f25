"""``phi4mm export vllm``: the exact launch of the original on GPUs."""

from __future__ import annotations

import argparse

from phi4mm.cli.export_target.bundle_export import add_folder_argument, present


def add_parser(targets: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the target."""
    parser = targets.add_parser(
        "vllm",
        help="vLLM: how to start it with the original checkpoint and both adapters",
        description="Write a script and a compose file that start vLLM with the original "
        "checkpoint, with `phi4mm serve --engine vllm` before it.",
    )
    parser.add_argument(
        "model",
        metavar="CHECKPOINT",
        nargs="?",
        help="folder (./DIR or /DIR) or repository (default: the original's)",
    )
    add_folder_argument(parser, "folder for script and compose file (default: they are shown)")
    for flag, default, text in (
        ("--ctx-size", 131072, "positions, prompt and answer together"),
        ("--tensor-parallel", 1, "GPUs that share each layer: 1, 2, 4 or 8"),
        ("--data-parallel", 1, "copies of the model behind one endpoint"),
        ("--pipeline-parallel", 1, "1: vLLM's class of this model takes no more"),
        ("--max-media", 32, "most pictures, and most clips, of a conversation"),
        ("--port", 8000, "of vLLM"),
    ):
        short = ["-c"] if flag == "--ctx-size" else []
        parser.add_argument(
            *short,
            flag,
            metavar="N",
            type=int,
            default=default,
            help=f"{text} (default: {default})",
        )
    parser.add_argument("--ray", action="store_true", help="several hosts, as a Ray cluster")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files, or show them."""
    from phi4mm.export.vllm import REPOSITORY, Launch, vllm_export

    launch = Launch(
        model=args.model or REPOSITORY,
        n_ctx=args.ctx_size,
        tensor_parallel=args.tensor_parallel,
        data_parallel=args.data_parallel,
        pipeline_parallel=args.pipeline_parallel,
        with_ray=args.ray,
        n_media=args.max_media,
        port=args.port,
    )
    present(vllm_export(launch, args.output), args.output)
    return 0
