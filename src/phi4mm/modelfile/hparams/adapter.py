"""Hyper-parameters of a LoRA adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile import keys
from phi4mm.modelfile.hparams.fields import (
    MAX_WIDTH,
    Field,
    FieldTable,
    WritableMetadata,
    adapter_name,
    bundle_id_of,
    check_bundle_id,
    check_fields,
    construct,
    is_own,
    read_fields,
    require,
    role_metadata,
    write_fields,
)
from phi4mm.modelfile.metadata import Metadata

_ADAPTER: Final[FieldTable] = {"alpha": Field(keys.Adapter.ALPHA, 1e-6, 1e6)}


@dataclass(frozen=True, slots=True)
class AdapterHParams:
    """A LoRA adapter of the decoder.

    Attributes:
        name: the mode it serves; None in files of others.
        alpha: LoRA alpha.
        rank: rows of the ``a`` matrices, read from the tensors.
        bundle_id: identity of the source checkpoint, if the file names one.
    """

    name: AdapterName | None
    alpha: float
    rank: int
    bundle_id: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self, _ADAPTER)
        check_bundle_id(self.bundle_id)
        require(
            1 <= self.rank <= MAX_WIDTH,
            f"the adapter has rank {self.rank}, must be 1 to {MAX_WIDTH}",
        )

    @property
    def scale(self) -> float:
        """What the adapter's product is multiplied with."""
        return self.alpha / self.rank

    @classmethod
    def from_metadata(cls, metadata: Metadata, rank: int) -> AdapterHParams:
        """Read and check the keys of an adapter file whose tensors have this rank.

        Raises:
            ModelFileError: a key is missing, has another type, or a value that cannot be.
        """
        metadata.text(keys.Adapter.TYPE, (keys.ADAPTER_LORA,))
        if keys.ALORA_TOKENS in metadata:
            raise metadata.error(f"has {keys.ALORA_TOKENS}: an activated LoRA is not supported")
        own = is_own(metadata)
        values = read_fields(metadata, _ADAPTER) | {
            "name": adapter_name(metadata, keys.Adapter.NAME) if own else None,
            "rank": rank,
            "bundle_id": bundle_id_of(metadata),
        }
        if own and values["name"] is None:
            raise metadata.error(f"metadata key {keys.Adapter.NAME} is missing")
        return construct(cls, metadata, values)

    def to_metadata(self) -> WritableMetadata:
        """Every key of an adapter file."""
        name: WritableMetadata = {} if self.name is None else {keys.Adapter.NAME: self.name}
        return (
            role_metadata(keys.ARCH_DECODER, keys.TYPE_ADAPTER, self.bundle_id)
            | {keys.Adapter.TYPE: keys.ADAPTER_LORA}
            | write_fields(self, _ADAPTER)
            | name
        )
