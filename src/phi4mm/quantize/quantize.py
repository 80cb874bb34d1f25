"""Quantises a bundle: the decoder, and the other parts if asked to; the rest is copied.

Everything that can be refused is refused before the first byte is written; what is written appears
under its name only when the whole bundle is done.
"""

from __future__ import annotations

from pathlib import Path

from phi4mm.convert.output_folder import (
    check_space,
    readable_os_errors,
    refuse_other_model,
    refuse_other_parts,
)
from phi4mm.convert.writer import StagedFiles
from phi4mm.modelfile.bundle import Bundle
from phi4mm.native.library import load
from phi4mm.progress import Progress, counter
from phi4mm.quantize.cores import n_threads_or_all
from phi4mm.quantize.plan import PlannedPart, Request, plan_bundle
from phi4mm.quantize.report import QuantizeReport, report_part


def quantize_bundle(
    path: Path,
    out_dir: Path,
    request: Request,
    *,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Quantise a bundle into a folder of its own.

    Weights are read, quantised and written in blocks of rows; no tensor is held whole.

    Args:
        path: the bundle's folder, or its decoder file.
        out_dir: the new bundle's folder; made if missing.
        request: the type of each part.
        n_threads: threads that quantise; None for all cores.
        progress: told about every block.

    Raises:
        ModelFileError: the bundle or the importance matrix cannot be used, or a weight is none
            that the type can hold.
        InputError: the request makes no sense for this bundle, or the output cannot be written.
    """
    with readable_os_errors(), Bundle.open(path) as bundle:
        return quantize_parts(bundle, out_dir, request, n_threads_or_all(n_threads), progress)


def quantize_parts(
    bundle: Bundle, out_dir: Path, request: Request, n_threads: int, progress: Progress | None
) -> QuantizeReport:
    """The same for a bundle that is open; system errors are the caller's.

    Raises:
        ModelFileError: as ``quantize_bundle``.
        InputError: as ``quantize_bundle``.
    """
    parts = plan_bundle(bundle, request, out_dir, load())
    _check_folder(out_dir, parts, bundle.bundle_id)
    advance = counter(sum(part.n_bytes for part in parts), progress)
    with StagedFiles(out_dir, n_threads) as staged:
        for part in parts:
            if part.output is None:
                staged.copy(part.source.file.path, part.path, advance)
            else:
                staged.write(part.output, advance)
    with Bundle.open(out_dir) as written:
        assert written.bundle_id == bundle.bundle_id
    notes = tuple(note for part in parts for note in part.notes)
    return QuantizeReport(tuple(map(report_part, parts)), bundle.bundle_id, notes)


def _check_folder(out_dir: Path, parts: list[PlannedPart], bundle_id: str | None) -> None:
    targets = [part.path for part in parts]
    refuse_other_parts(out_dir, targets)
    for target in targets:
        refuse_other_model(target, bundle_id)
    check_space(out_dir, sum(part.n_bytes for part in parts))
