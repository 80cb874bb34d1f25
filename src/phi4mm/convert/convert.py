"""Converts a checkpoint, or a user's own adapter, into GGUF files.

Everything that can be refused is refused before the first byte is written; what is written appears
under its name only when the whole set is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phi4mm.convert import rules
from phi4mm.convert.checkpoint import (
    ADAPTERS,
    TRANSFORMERS,
    Checkpoint,
    open_adapter_tensors,
    open_checkpoint,
)
from phi4mm.convert.lora import read_lora_config
from phi4mm.convert.naming import FileNames, adapter_name, folder_name
from phi4mm.convert.output_folder import (
    check_space,
    readable_os_errors,
    refuse_other_model,
    refuse_other_parts,
)
from phi4mm.convert.part_type import OneType, PartTypes
from phi4mm.convert.plan import Plan, adapter_file, plan_checkpoint
from phi4mm.convert.writer import StagedFiles
from phi4mm.errors import InputError
from phi4mm.modality import Adapter
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import AdapterHParams, DecoderHParams
from phi4mm.modelfile.tensors import adapter_tensors
from phi4mm.progress import Progress, counter


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file that was written.

    Attributes:
        path: the file.
        part: what it is.
        type_name: type of its matrices, as files are named after it.
        n_tensors: tensors in it.
        n_bytes: its size.
    """

    path: Path
    part: str
    type_name: str
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What a conversion did.

    Attributes:
        files: the files written.
        bundle_id: the id they carry; None for an adapter of a bundle without one.
        n_used: source tensors that went into a file.
        dropped: source tensors left out, by reason.
        notes: what a person should know: padded rows, types that fell back, folders not read.
    """

    files: tuple[FileReport, ...]
    bundle_id: str | None
    n_used: int
    dropped: Mapping[str, int]
    notes: tuple[str, ...]


def convert_checkpoint(
    path: Path,
    out_dir: Path,
    *,
    types: PartTypes | None = None,
    merge: Adapter | None = None,
    progress: Progress | None = None,
) -> BundleReport:
    """Convert a checkpoint folder into a bundle.

    A file that is already there is replaced if it is the same part of the same checkpoint; any
    other GGUF file in the folder is refused, since a bundle's folder holds one model.

    Args:
        path: the checkpoint: Microsoft's layout or transformers'.
        out_dir: the bundle's folder; made if missing.
        types: element type of each part; by default F16 decoder, Q8_0 encoders and adapters.
        merge: adapter to add to the decoder's weights instead of writing adapter files.
        progress: told about every block.

    Raises:
        ModelFileError: the checkpoint is malformed, incomplete or of another model.
        InputError: the output cannot be written: no space, no permission, other files in the way.
    """
    with readable_os_errors():
        checkpoint = open_checkpoint(path)
        plan = plan_checkpoint(checkpoint, out_dir, (types or PartTypes()).formats, merge)
        targets = {file.output.path for file in plan.files}
        refuse_other_parts(out_dir, targets)
        return _write(plan, out_dir, progress)


def convert_adapter(
    folder: Path,
    bundle: Path,
    out_dir: Path,
    *,
    lora_type: GGMLType = GGMLType.Q8_0,
    adapter: Adapter | None = None,
    progress: Progress | None = None,
) -> BundleReport:
    """Convert a user's own PEFT LoRA folder for use with a bundle.

    Args:
        folder: the adapter: adapter_config.json and adapter_model.safetensors.
        bundle: the bundle's decoder file, or its folder.
        out_dir: where the file goes; made if missing.
        lora_type: element type of its matrices.
        adapter: the mode it serves; by default read from the folder's name.
        progress: told about every block.

    Raises:
        ModelFileError: the adapter is malformed, is not plain LoRA, or does not fit the decoder.
        InputError: the mode cannot be told, or the output cannot be written.
    """
    with readable_os_errors():
        decoder = _decoder_of(bundle)
        name = adapter or _adapter_from_name(folder)
        lora = read_lora_config(folder)
        tensors = {f"{name}-lora/{k}": v for k, v in open_adapter_tensors(folder).items()}
        source = Checkpoint(folder, TRANSFORMERS, {}, tensors, (folder,), ())
        table = {"adapter": list(rules.adapter_rules(decoder.n_layer, name))}
        found = rules.resolve(source, table, [])["adapter"]
        hparams = AdapterHParams(name, lora.alpha, lora.rank, decoder.bundle_id)
        rules.check_table("adapter", found, adapter_tensors(hparams, decoder))
        names = FileNames(out_dir, adapter_name(folder, name))
        file = adapter_file(names, hparams, decoder, found, OneType(lora_type))
        _refuse_second_adapter(bundle, name, file.output.path)
        return _write(Plan((file,), decoder.bundle_id, len(found), {}, ()), out_dir, progress)


def _write(plan: Plan, out_dir: Path, progress: Progress | None) -> BundleReport:
    outputs = [file.output for file in plan.files]
    for output in outputs:
        refuse_other_model(output.path, plan.bundle_id)
    total = sum(output.n_bytes for output in outputs)
    check_space(out_dir, total)
    advance = counter(total, progress)
    with StagedFiles(out_dir) as staged:
        for output in outputs:
            staged.write(output, advance)
    return report_plan(plan)


def report_plan(plan: Plan) -> BundleReport:
    """What became of a plan whose files are written."""
    files = tuple(
        FileReport(
            path=file.output.path,
            part=file.part,
            type_name=file.format.name,
            n_tensors=len(file.output.tensors),
            n_bytes=file.output.path.stat().st_size,
        )
        for file in plan.files
    )
    notes = (*plan.notes, *(note for file in plan.files for note in file.notes))
    return BundleReport(files, plan.bundle_id, plan.n_used, plan.dropped, notes)


def _refuse_second_adapter(bundle: Path, name: Adapter, target: Path) -> None:
    """Refuse to put an adapter beside the one that the bundle has for the same mode.

    Raises:
        InputError: the bundle would have two.
    """
    with Bundle.open(bundle) as opened:
        present = opened.adapters.get(name)
    if present is None or present.path.resolve() == target.resolve():
        return
    if present.path.parent.resolve() == target.parent.resolve():
        raise InputError(
            f"{present.path} is this bundle's {name} adapter already: choose another folder (-o)"
        )


def _decoder_of(path: Path) -> DecoderHParams:
    decoder = Bundle.open(path).decoder.hparams
    if decoder.merged_adapter is not None:
        raise InputError(
            f"{path}: has its {decoder.merged_adapter} adapter merged; an adapter needs a bundle "
            "without"
        )
    return decoder


def _adapter_from_name(folder: Path) -> Adapter:
    name = (folder_name(folder) or "").lower()
    found = [adapter for adapter in ADAPTERS if adapter in name]
    if len(found) != 1:
        raise InputError(
            f"{folder}: its name does not tell which adapter it replaces: say --as vision or "
            "--as speech"
        )
    return found[0]
