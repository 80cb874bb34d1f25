"""Options that several verbs share: which bundle, how to run it, how to sample."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phi4mm.api import Phi4MM
    from phi4mm.engine.parameters import SamplingParams
    from phi4mm.modality import Mode
    from phi4mm.modelfile.bundle import Bundle
    from phi4mm.native.device import Offload

KV_TYPES = ("f32", "f16", "q8_0")


def nonempty_path(text: str) -> Path:
    """A path argument; an empty one would mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Flags that choose and load a bundle, named as llama.cpp's users know them."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        metavar="BUNDLE",
        type=nonempty_path,
        help="bundle folder or decoder file (default: $PHI4MM_MODEL, else the built-in sample)",
    )
    group.add_argument(
        "--mmproj", metavar="FILE", type=nonempty_path, help="encoders and projectors"
    )
    group.add_argument(
        "--vision-lora", metavar="FILE", type=nonempty_path, help="adapter for pictures"
    )
    group.add_argument(
        "--speech-lora", metavar="FILE", type=nonempty_path, help="adapter for clips"
    )
    group.add_argument(
        "-c",
        "--ctx-size",
        metavar="N",
        type=int,
        help="positions per sequence, prompt and answer together "
        "(default: 8192, or what the model was trained for if that is less)",
    )
    add_threads_option(group)
    add_offload_options(group, with_encoders=True)
    group.add_argument(
        "-fa",
        "--flash-attn",
        choices=("on", "off", "auto"),
        default="auto",
        help="the decoder's attention kernel (default: auto)",
    )
    add_cache_type_options(group)


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """How many threads compute."""
    parser.add_argument("-t", "--threads", metavar="N", type=int, help="CPU threads (default: all)")


def add_offload_options(parser: argparse._ActionsContainer, *, with_encoders: bool = False) -> None:
    """What goes to accelerators, and to which."""
    parser.add_argument(
        "-ngl",
        "--n-gpu-layers",
        metavar="N",
        type=int,
        default=0,
        help="decoder layers on accelerators, 99 for all (default: 0)",
    )
    parser.add_argument(
        "-dev",
        "--device",
        metavar="NAME,...",
        type=_device_names,
        help="accelerators to use, as `phi4mm devices` names them, or none (default: all)",
    )
    parser.add_argument(
        "-mg",
        "--main-gpu",
        metavar="N",
        type=int,
        help="give everything to one of them, counted from 0 (default: layers are spread over "
        "all" + (", the encoders go to the first)" if with_encoders else ")"),
    )
    if with_encoders:
        parser.add_argument(
            "--no-mmproj-offload",
            action="store_true",
            help="keep the encoders on the CPU",
        )
    else:
        parser.set_defaults(no_mmproj_offload=False)


def _device_names(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def offload(args: argparse.Namespace) -> Offload:
    """The flags of ``add_offload_options``, checked.

    Raises:
        InputError: they contradict each other, or a number is out of range.
    """
    from phi4mm.native.device import Offload

    return Offload(
        n_gpu_layers=args.n_gpu_layers,
        devices=args.device,
        main_gpu=args.main_gpu,
        encoders=not args.no_mmproj_offload,
    )


def add_cache_type_options(parser: argparse._ActionsContainer) -> None:
    """Element types of the KV cache."""
    for letter, name in (("k", "keys"), ("v", "values")):
        parser.add_argument(
            f"-ct{letter}",
            f"--cache-type-{letter}",
            choices=KV_TYPES,
            default="f16",
            type=str.lower,
            help=f"element type of cached {name} (default: f16)",
        )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Flags that choose the next token and the end of an answer."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "-n",
        "--n-predict",
        metavar="N",
        type=int,
        help="most tokens to generate; -1 or nothing: until it stops or the context is full",
    )
    group.add_argument(
        "--temp",
        metavar="T",
        type=float,
        default=0.0,
        help="temperature; 0 takes the most likely token (default: 0)",
    )
    group.add_argument("--top-p", metavar="P", type=float, default=1.0, help="default: 1 (off)")
    group.add_argument("--top-k", metavar="K", type=int, default=0, help="default: 0 (off)")
    group.add_argument("--min-p", metavar="P", type=float, default=0.0, help="default: 0 (off)")
    group.add_argument("-s", "--seed", metavar="N", type=int, help="makes sampling repeatable")


def sample_bundle() -> Path:
    """The bundle that ships inside the package."""
    return Path(str(files("phi4mm") / "sample"))


def sample_notice() -> str:
    """What the sample is and can do, as the file beside it says, and how to get the real model."""
    about = json.loads((sample_bundle() / "about.json").read_text(encoding="utf-8"))
    return (
        f"no model given (-m, or PHI4MM_MODEL): using the built-in sample, {about['what']}. For "
        "the real one, convert microsoft/Phi-4-multimodal-instruct: phi4mm convert CHECKPOINT "
        "-o DIR"
    )


def bundle_path(args: argparse.Namespace) -> Path:
    """Where the bundle is; says so on stderr where it is the sample."""
    path = args.model or os.environ.get("PHI4MM_MODEL") or None
    if path is not None:
        return Path(path)
    print(f"phi4mm: {sample_notice()}", file=sys.stderr)
    return sample_bundle()


def open_bundle(args: argparse.Namespace) -> Bundle:
    """Open the files that the model flags name; says so on stderr where they are the sample's.

    Raises:
        ModelFileError: a file cannot be used.
    """
    from phi4mm.modelfile.bundle import Bundle

    return Bundle.open(
        bundle_path(args),
        mmproj=args.mmproj,
        vision_lora=args.vision_lora,
        speech_lora=args.speech_lora,
    )


def open_model(
    args: argparse.Namespace, *, keep_embeddings: bool = True, mode: Mode | None = None
) -> Phi4MM:
    """Load what the model flags name; says so on stderr where it is the sample.

    Args:
        args: the parsed flags.
        keep_embeddings: whether a picture or clip may come a second time.
        mode: of all that will be asked, where that is known: what it does not need is checked but
            not loaded.  An adapter takes seconds and half a gigabyte.

    Raises:
        ModelFileError: a file cannot be used.
        InputError: a setting is out of range for this model.
    """
    from phi4mm.api import Phi4MM
    from phi4mm.engine.parameters import DEFAULT_ENCODER_CACHE_BYTES

    bundle = open_bundle(args)
    return Phi4MM(
        bundle if mode is None else bundle.only(mode),
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        offload=offload(args),
        flash_attention=args.flash_attn,
        kv_type=(args.cache_type_k, args.cache_type_v),
        encoder_cache_bytes=DEFAULT_ENCODER_CACHE_BYTES if keep_embeddings else 0,
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling flags, checked.

    Raises:
        InputError: a value is out of range.
    """
    from phi4mm.engine.parameters import SamplingParams

    return SamplingParams(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=None if args.n_predict == -1 else args.n_predict,
    )
