"""The parts of a bundle as something to quantise: tables, rows, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np

from phi4mm.convert.naming import FileNames, TypeName, slug
from phi4mm.convert.tensorfile import SourceTensor
from phi4mm.modality import Adapter
from phi4mm.modelfile import keys, tensors
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.hparams import WritableMetadata, WritableValue
from phi4mm.modelfile.keys import Key, KeyType, type_name
from phi4mm.modelfile.metadata import Metadata
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import TensorSpec, TensorTable

Role = Literal["decoder", "mmproj", "adapter"]

# What the writer decides by itself, and what is true of the source's files only.
_LEFT_OUT: Final = (keys.General.ALIGNMENT, "split.count", "split.no", "split.tensors.count")


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One part of the bundle that is quantised.

    Attributes:
        role: what it is.
        adapter: which adapter it is, if it is one.
        file: its file.
        table: what its tensors must be.
    """

    role: Role
    adapter: Adapter | None
    file: GGUFFile
    table: TensorTable

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{self.adapter} adapter" if self.adapter else self.role

    @property
    def matrices(self) -> list[str]:
        """The tensors that may be given another type, in file order."""
        return [name for name in self.file.tensors if self.table[name].kind == "matrix"]

    def path(self, folder: Path, type_: TypeName) -> Path:
        """Where the part goes if it is made of this type."""
        name = self.file.metadata.get(keys.General.NAME, self.file.path.stem)
        names = FileNames(folder, slug(str(name)))
        if self.adapter is not None:
            return names.adapter(self.adapter, type_)
        return names.decoder(type_) if self.role == "decoder" else names.mmproj(type_)

    def rows(self, name: str) -> SourceTensor:
        """The rows of a tensor of type F32, F16 or BF16, read when they are needed."""
        info = self.file.tensors[name]
        data = self.file.raw(name).data
        return SourceTensor(name, info.ggml_type.name, info.shape, self.file.path, data)


def parts_of(bundle: Bundle) -> Iterator[SourcePart]:
    """The parts of a bundle: the decoder first, then what there is of mmproj and adapters."""
    decoder = bundle.decoder
    table = tensors.decoder_tensors(decoder.hparams)
    if tensors.OUTPUT in decoder.file.tensors:
        shape = (decoder.hparams.n_vocab, decoder.hparams.n_embd)
        table[tensors.OUTPUT] = TensorSpec(shape, "matrix")
    yield SourcePart("decoder", None, decoder.file, table)
    if bundle.mmproj is not None:
        table = tensors.mmproj_tensors(bundle.mmproj.vision, bundle.mmproj.audio)
        yield SourcePart("mmproj", None, bundle.mmproj.file, table)
    for name, adapter in bundle.adapters.items():
        table = tensors.adapter_tensors(adapter.hparams, decoder.hparams)
        yield SourcePart("adapter", name, adapter.file, table)


def copied_metadata(metadata: Metadata, changes: WritableMetadata) -> WritableMetadata:
    """All of a file's metadata, with some values changed or added."""
    copied: WritableMetadata = {}
    for name in metadata:
        if name not in _LEFT_OUT:
            entry = metadata.entry(name)
            # the reader knows more types than this package's own keys have
            key = Key(name, cast(KeyType, type_name(entry.type, entry.is_array)), "")
            copied[key] = _writable(metadata, name)
    return copied | changes


def _writable(metadata: Metadata, name: str) -> WritableValue:
    value = metadata[name]
    if isinstance(value, np.ndarray):
        return cast(WritableValue, value.tolist())
    return value
