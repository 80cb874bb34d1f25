"""``phi4mm perplexity``: how well the decoder predicts a text, or how far it is from another."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from phi4mm.cli.compute_options import (
    add_compute_options,
    add_parse_special_option,
    add_record_options,
    compute_params,
)
from phi4mm.cli.options import add_offload_options, offload
from phi4mm.cli.progress import progress_bar
from phi4mm.errors import InputError

if TYPE_CHECKING:
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.evals.perplexity import Divergence, Perplexity
    from phi4mm.evals.statistic import Estimate
    from phi4mm.measurement.record import Kind
    from phi4mm.modelfile.part import DecoderPart

_DEFAULT_CTX = 512
_EPILOG = """\
The method is llama-perplexity's, and its files of log-probabilities can be used: chunks of -c
tokens, each from an empty cache, the second half of each scored.

examples:
  phi4mm perplexity bundle -f wiki.test.raw
  phi4mm perplexity bundle-f16 -f text.txt --chunks 20 --save-logits base.bin
  phi4mm perplexity bundle-q4 --kl-divergence --base base.bin
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "perplexity",
        help="score a text, or compare with the F16 model's predictions",
        description="Perplexity of a text under the decoder without an adapter; or, with "
        "--kl-divergence, the divergence from a base model on the base's own text.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_compute_options(parser)
    parser.add_argument("-f", "--file", metavar="TEXT", type=Path, help="text file, UTF-8")
    parser.add_argument(
        "-c", "--ctx-size", metavar="N", type=int, help=f"tokens of a chunk ({_DEFAULT_CTX})"
    )
    parser.add_argument("--chunks", metavar="N", type=int, help="most chunks (default: all)")
    add_parse_special_option(parser)
    parser.add_argument(
        "--save-logits", metavar="FILE", type=Path, help="keep the log-probabilities as a base"
    )
    parser.add_argument("--kl-divergence", action="store_true", help="compare with a base")
    parser.add_argument("--base", metavar="FILE", type=Path, help="what --save-logits wrote")
    add_offload_options(parser)
    add_record_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; the bar goes to stderr, the numbers to stdout."""
    from phi4mm.measurement.record import new_record
    from phi4mm.modelfile.bundle import Bundle

    _check_flags(args)
    params = compute_params(args, offload=offload(args))
    with Bundle.open(args.bundle) as bundle:
        result = _measure(args, bundle.decoder, params)
        source = args.base if args.kl_divergence else args.file
        values = {"text": source.name, **asdict(result)}
        kind: Kind = "kl_divergence" if args.kl_divergence else "perplexity"
        record = new_record(kind, bundle, values, params.threads)
    if args.output is not None:
        record.write(args.output)
    print(json.dumps(values) if args.json else summary(result))
    return 0


def _measure(
    args: argparse.Namespace, decoder: DecoderPart, params: EngineParams
) -> Perplexity | Divergence:
    from phi4mm.evals.perplexity import measure_divergence, measure_perplexity

    with progress_bar("scoring", unit="chunks") as progress:
        if args.kl_divergence:
            return measure_divergence(
                decoder, args.base, params, max_chunks=args.chunks, progress=progress
            )
        return measure_perplexity(
            decoder,
            args.file,
            params,
            n_ctx=_DEFAULT_CTX if args.ctx_size is None else args.ctx_size,
            max_chunks=args.chunks,
            parse_special=args.parse_special,
            save_to=args.save_logits,
            progress=progress,
        )


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that are missing or would have no effect."""
    if not args.kl_divergence:
        if args.file is None:
            raise InputError("no text: give one with -f, or a base with --kl-divergence --base")
        if args.base is not None:
            raise InputError("--base has no meaning without --kl-divergence")
        return
    if args.base is None:
        raise InputError("--kl-divergence needs --base FILE, which --save-logits writes")
    idle = {"-f": args.file, "-c": args.ctx_size, "--save-logits": args.save_logits}
    for flag, value in idle.items():
        if value is not None:
            raise InputError(f"{flag} has no meaning with --kl-divergence: the base names the text")
    if args.parse_special:
        raise InputError(
            "--parse-special has no meaning with --kl-divergence: the base names the tokens"
        )
    if args.chunks is not None and args.chunks < 1:
        raise InputError(f"--chunks is {args.chunks}, must be at least 1")


def summary(result: Perplexity | Divergence) -> str:
    """The numbers, one to a line."""
    from phi4mm.evals.perplexity import Perplexity

    scope = f"{result.n_scored} tokens scored, {result.n_chunks} chunks of {result.n_ctx}"
    if isinstance(result, Perplexity):
        return f"perplexity {_text(result.perplexity, 4)} ({scope})"
    return "\n".join([
        f"perplexity                {_text(result.perplexity, 4)}",
        f"perplexity of the base    {_text(result.base_perplexity, 4)}",
        f"logarithm of their ratio  {_text(result.log_ratio, 5)}",
        f"KL divergence, mean       {_text(result.kl, 6)}",
        f"KL divergence, median     {result.kl_median:.6f}",
        f"KL divergence, 99 %       {result.kl_99:.6f}",
        f"KL divergence, maximum    {result.kl_max:.6f}",
        f"same most likely token    {_text(result.same_top, 4)}",
        f"change of probability     {result.rms_dp:.4f} (root mean square)",
        f"({scope})",
    ])  # fmt: skip


def _text(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} +/- {estimate.error:.{digits}f}"
