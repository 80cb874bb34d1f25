"""Checkpoint to GGUF: lazy shards, rule tables, streaming writer."""

from phi4mm.convert.convert import (
    BundleReport,
    FileReport,
    convert_adapter,
    convert_checkpoint,
)
from phi4mm.convert.part_type import TYPES, PartTypes
from phi4mm.progress import Progress

__all__ = [
    "TYPES",
    "BundleReport",
    "FileReport",
    "PartTypes",
    "Progress",
    "convert_adapter",
    "convert_checkpoint",
]
