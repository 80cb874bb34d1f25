"""``phi4mm verify``: a bundle against the checkpoint it was made from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from phi4mm.cli.compute_options import add_record_options
from phi4mm.cli.interrupt import cancel_on_signal
from phi4mm.cli.progress import stage

_EPILOG = """\
Weights are compared without any other package. The stages of the encoders and the answers are
compared with transformers' model, if it is installed (pip install 'phi4mm[verify]'); that takes
four bytes of memory for each weight, 24 GB for the real model. --record keeps what that model says
(some 10 MB), and --recorded compares with it where torch or the memory is not at hand.

examples:
  phi4mm verify Phi-4-multimodal-instruct bundle --markdown parity.md
  phi4mm verify Phi-4-multimodal-instruct bundle --record reference.npz
  phi4mm verify Phi-4-multimodal-instruct bundle-q4 --recorded reference.npz
"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "verify",
        help="compare a bundle with the checkpoint it was made from",
        description="Account for every tensor of the checkpoint, compare every weight, and with "
        "transformers installed every stage: errors, cosine, greedy tokens.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="folder, either layout")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder or decoder file")
    parser.add_argument("-t", "--threads", metavar="N", type=int, help="CPU threads (default: all)")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report here too")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--record", metavar="FILE", type=Path, help="keep what the reference says (.npz)"
    )
    kept.add_argument(
        "--recorded", metavar="FILE", type=Path, help="compare with what --record kept"
    )
    add_record_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare; bars go to stderr, the report to stdout."""
    from phi4mm.api import Phi4MM
    from phi4mm.convert.checkpoint import open_checkpoint
    from phi4mm.engine.parameters import EngineParams
    from phi4mm.measurement.record import new_record
    from phi4mm.measurement.staged_file import staged_file
    from phi4mm.verify.recording import Recording, read_recording, write_recording
    from phi4mm.verify.report import to_markdown, verify

    n_threads = EngineParams(n_threads=args.threads).threads
    with Phi4MM(args.bundle, n_threads=args.threads, kv_type="f32") as model:
        checkpoint, bundle_id = open_checkpoint(args.checkpoint), model.bundle.bundle_id
        recorded = None if args.recorded is None else read_recording(args.recorded, bundle_id)
        kept = None if args.record is None else Recording(str(bundle_id))
        with cancel_on_signal(model.cancel):
            report = verify(checkpoint, model, n_threads, stage, recorded=recorded, record=kept)
        record = new_record("verify", model.bundle, report.as_dict(), n_threads)
    if kept is not None:
        write_recording(kept, args.record)
    if args.output is not None:
        record.write(args.output)
    text = to_markdown(report)
    if args.markdown is not None:
        with staged_file(args.markdown) as stream:
            stream.write(f"{text}\n".encode())
    print(json.dumps(report.as_dict()) if args.json else text)
    return 0
