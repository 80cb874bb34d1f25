"""Hyper-parameters of the parts, frozen and checked.

Each class is made by the converter from a checkpoint's configuration, or from a file's metadata
with ``from_metadata``; ``to_metadata`` is the inverse, so the mapping between fields and keys
exists once, in a table beside the class.  What a constructor accepts, the native loader and our
graphs can compute; errors name the key, its value and what would be right.
"""

from phi4mm.modelfile.hparams.adapter import AdapterHParams
from phi4mm.modelfile.hparams.audio import AudioHParams, MelHParams
from phi4mm.modelfile.hparams.decoder import DecoderHParams
from phi4mm.modelfile.hparams.fields import WritableMetadata, WritableValue
from phi4mm.modelfile.hparams.mmproj import mmproj_metadata
from phi4mm.modelfile.hparams.vision import VisionHParams

__all__ = [
    "AdapterHParams",
    "AudioHParams",
    "DecoderHParams",
    "MelHParams",
    "VisionHParams",
    "WritableMetadata",
    "WritableValue",
    "mmproj_metadata",
]
