"""What a conversion will write, decided and checked before anything is written.

In: an opened checkpoint or adapter.  Out: ``Plan``: every file with its metadata and tensors, and
what a person should be told about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from phi4mm.convert import rules
from phi4mm.convert.checkpoint import ADAPTERS, Checkpoint
from phi4mm.convert.config import ModelConfig, read_config
from phi4mm.convert.fields import Fields
from phi4mm.convert.identity import bundle_id, merged_id
from phi4mm.convert.naming import FileNames, checkpoint_name
from phi4mm.convert.part_type import PartFormat, PartFormats
from phi4mm.convert.rows import ArrayRows, MergedRows, RowSource, rows_of
from phi4mm.convert.rules import Resolved
from phi4mm.convert.tokenizer import TokenizerMetadata, read_tokenizer
from phi4mm.convert.writer import OutputFile, OutputTensor
from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter
from phi4mm.modelfile import keys, tensors
from phi4mm.modelfile.hparams import (
    AdapterHParams,
    DecoderHParams,
    WritableMetadata,
    mmproj_metadata,
)
from phi4mm.modelfile.tensors import TARGETS, TensorTable

QUANTIZATION_VERSION = 2  # ggml's number for its present block layouts


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the plan.

    Attributes:
        output: what will be written.
        part: ``decoder``, ``mmproj``, ``vision adapter`` or ``speech adapter``.
        format: how its tensors are stored.
        notes: what was done to rows that the type's block does not divide.
    """

    output: OutputFile
    part: str
    format: PartFormat
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion, decided.

    Attributes:
        files: the files, in the order they are written.
        bundle_id: the id they carry; None for an adapter of a bundle without one.
        n_used: source tensors that go into a file.
        dropped: source tensors left out, by reason.
        notes: what a person should know besides.
    """

    files: tuple[PlannedFile, ...]
    bundle_id: str | None
    n_used: int
    dropped: Mapping[str, int]
    notes: tuple[str, ...]


def plan_checkpoint(
    checkpoint: Checkpoint,
    out_dir: Path,
    formats: PartFormats,
    merge: Adapter | None = None,
    identity: str | None = None,
) -> Plan:
    """Plan the bundle of a checkpoint.

    Args:
        checkpoint: the opened checkpoint.
        out_dir: the bundle's folder.
        formats: of each part.
        merge: the adapter to merge into the decoder, or None.
        identity: of the checkpoint, where its weights are not all here.

    Raises:
        ModelFileError: the checkpoint is not what one of this model must be.
    """
    config = read_config(checkpoint)
    found, dropped = resolve_parts(checkpoint, config)
    tokenizer = read_tokenizer(checkpoint.path, config.decoder.n_vocab)
    _check_token_ids(checkpoint, config, tokenizer)
    identity = identity or bundle_id(checkpoint)
    decoder = replace(
        config.decoder,
        image_token_id=tokenizer.image_token_id,
        audio_token_id=tokenizer.audio_token_id,
        bundle_id=identity if merge is None else merged_id(identity, merge),
        merged_adapter=merge,
    )
    names = FileNames(out_dir, checkpoint_name(checkpoint.path, checkpoint.config, merge))
    files = _bundle_files(names, decoder, config, tokenizer, found, formats)
    if merge is not None:
        (other,) = set(ADAPTERS) - {merge}
        reason = f"{other} adapter, of no use to a decoder with the {merge} adapter merged"
        dropped[reason] = len(found.pop(other))
    return Plan(
        files=tuple(files),
        bundle_id=decoder.bundle_id,
        n_used=sum(len(item.sources) for part in found.values() for item in part),
        dropped=dropped,
        notes=(*tokenizer.notes, *_checkpoint_notes(checkpoint, merge)),
    )


def _bundle_files(
    names: FileNames,
    decoder: DecoderHParams,
    config: ModelConfig,
    tokenizer: TokenizerMetadata,
    found: Mapping[str, list[Resolved]],
    formats: PartFormats,
) -> list[PlannedFile]:
    files = [
        _decoder_file(names, decoder, config, tokenizer, found, formats.decoder),
        _mmproj_file(names, config, decoder.bundle_id, found["mmproj"], formats.mmproj),
    ]
    if decoder.merged_adapter is None:
        for name, lora in config.adapters.items():
            hparams = AdapterHParams(name, lora.alpha, lora.rank, decoder.bundle_id)
            files.append(adapter_file(names, hparams, decoder, found[name], formats.lora))
    return files


def resolve_parts(
    checkpoint: Checkpoint, config: ModelConfig
) -> tuple[dict[str, list[Resolved]], dict[str, int]]:
    """Find every tensor of every part, and account for all others.

    Returns:
        The rules of each part with their tensors, and the number of tensors dropped by reason.

    Raises:
        ModelFileError: a tensor is missing, has another shape, or is named by no rule.
    """
    drops = rules.drops(config.vision.n_layer, config.n_vision_stored)
    found = rules.resolve(checkpoint, _part_rules(config), drops)
    _check_shapes(config, found)
    return found, rules.count_dropped(checkpoint, drops)


def adapter_file(
    names: FileNames,
    hparams: AdapterHParams,
    decoder: DecoderHParams,
    found: Sequence[Resolved],
    part_format: PartFormat,
) -> PlannedFile:
    """Plan the file of one adapter, whose shapes are checked."""
    assert hparams.name is not None
    return _file(
        path=names.adapter(hparams.name, part_format),
        part=f"{hparams.name} adapter",
        metadata=hparams.to_metadata() | _general(names, part_format),
        rows={item.rule.target: rows_of(item) for item in found},
        table=tensors.adapter_tensors(hparams, decoder),
        part_format=part_format,
    )


def _part_rules(config: ModelConfig) -> dict[str, list[rules.Rule]]:
    n_layer = config.decoder.n_layer
    vision, audio = config.vision.n_layer, config.audio.n_layer
    return {
        "decoder": list(rules.decoder_rules(n_layer)),
        "mmproj": [*rules.vision_rules(vision), *rules.audio_rules(audio)],
        **{name: list(rules.adapter_rules(n_layer, name)) for name in ADAPTERS},
    }


def _check_shapes(config: ModelConfig, found: Mapping[str, list[Resolved]]) -> None:
    rope_factors = {tensors.ROPE_FACTORS_LONG, tensors.ROPE_FACTORS_SHORT}
    decoder_table = tensors.decoder_tensors(config.decoder)
    rules.check_table("decoder", found["decoder"], decoder_table, rope_factors)
    mmproj_table = tensors.mmproj_tensors(config.vision, config.audio)
    rules.check_table("mmproj", found["mmproj"], mmproj_table)
    for name, lora in config.adapters.items():
        hparams = AdapterHParams(name, lora.alpha, lora.rank)
        rules.check_table(name, found[name], tensors.adapter_tensors(hparams, config.decoder))


def _check_token_ids(
    checkpoint: Checkpoint, config: ModelConfig, tokenizer: TokenizerMetadata
) -> None:
    """Refuse ids that contradict the names, and stop tokens that the files have no key for."""
    fields = Fields(checkpoint.path / "config.json", checkpoint.config)
    fields.expect("vision_config.image_token_id", (tokenizer.image_token_id,))
    fields.expect("audio_config.audio_token_id", (tokenizer.audio_token_id,))
    if other := config.stop_ids - tokenizer.stop_ids:
        raise ModelFileError(
            f"{checkpoint.path}: eos_token_id names {sorted(other)}; generation stops on "
            f"{sorted(tokenizer.stop_ids)}, <|endoftext|> and <|end|>"
        )


def _decoder_file(
    names: FileNames,
    decoder: DecoderHParams,
    config: ModelConfig,
    tokenizer: TokenizerMetadata,
    found: Mapping[str, list[Resolved]],
    part_format: PartFormat,
) -> PlannedFile:
    factors: dict[str, RowSource] = {
        tensors.ROPE_FACTORS_LONG: ArrayRows(np.array(config.rope_long, np.float32)),
        tensors.ROPE_FACTORS_SHORT: ArrayRows(np.array(config.rope_short, np.float32)),
    }
    rows = factors | {item.rule.target: rows_of(item) for item in found["decoder"]}
    if decoder.merged_adapter is not None:
        rows |= _merged_rows(decoder, config, found)
    return _file(
        path=names.decoder(part_format),
        part="decoder",
        metadata=decoder.to_metadata() | _general(names, part_format) | tokenizer.metadata,
        rows=rows,
        table=tensors.decoder_tensors(decoder),
        part_format=part_format,
    )


def _merged_rows(
    decoder: DecoderHParams, config: ModelConfig, found: Mapping[str, list[Resolved]]
) -> dict[str, RowSource]:
    """The decoder's matrices with its merged adapter added."""
    assert decoder.merged_adapter is not None
    lora = config.adapters[decoder.merged_adapter]
    halves = found[decoder.merged_adapter]
    source = {item.rule.target: item.sources[0] for item in (*found["decoder"], *halves)}
    return {
        tensors.decoder_block(il, target): MergedRows(
            weight=source[tensors.decoder_block(il, target)],
            a=source[tensors.lora(il, target, "a")],
            b=source[tensors.lora(il, target, "b")],
            scale=lora.alpha / lora.rank,
        )
        for il in range(decoder.n_layer)
        for target in TARGETS
    }


def _mmproj_file(
    names: FileNames,
    config: ModelConfig,
    identity: str | None,
    found: Sequence[Resolved],
    part_format: PartFormat,
) -> PlannedFile:
    metadata = mmproj_metadata(config.vision, config.audio, identity)
    return _file(
        path=names.mmproj(part_format),
        part="mmproj",
        metadata=metadata | _general(names, part_format),
        rows={item.rule.target: rows_of(item) for item in found},
        table=tensors.mmproj_tensors(config.vision, config.audio),
        part_format=part_format,
    )


def _general(names: FileNames, part_format: PartFormat) -> WritableMetadata:
    return {
        keys.General.NAME: names.name,
        keys.General.FILE_TYPE: part_format.file_type,
        keys.General.QUANTIZATION_VERSION: QUANTIZATION_VERSION,
    }


def _file(
    *,
    path: Path,
    part: str,
    metadata: WritableMetadata,
    rows: Mapping[str, RowSource],
    table: TensorTable,
    part_format: PartFormat,
) -> PlannedFile:
    encode = part_format.encode()
    output, counts = [], Counter[str]()
    for name, stored in part_format.stored(table).items():
        output.append(OutputTensor(name, stored.shape, stored.ggml_type, rows[name], encode))
        counts.update([stored.note] if stored.note else [])
    notes = tuple(
        f"{part}: {n} {'matrix' if n == 1 else 'matrices'} with {note}"
        for note, n in counts.items()
    )
    return PlannedFile(OutputFile(path, metadata, output), part, part_format, notes)


def _checkpoint_notes(checkpoint: Checkpoint, merge: Adapter | None) -> list[str]:
    notes = [
        f"{folder.name}/ was not read: the shards hold this adapter"
        for folder in checkpoint.ignored_folders
    ]
    if merge is not None:
        modes = {"vision": "with pictures (and sound beside them)", "speech": "with sound alone"}
        notes.append(f"the {merge} adapter is merged: only conversations {modes[merge]} are right")
    return notes
