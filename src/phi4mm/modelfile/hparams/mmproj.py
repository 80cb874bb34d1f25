"""Keys of an mmproj file as a whole."""

from __future__ import annotations

from phi4mm.modelfile import keys
from phi4mm.modelfile.hparams.audio import AudioHParams
from phi4mm.modelfile.hparams.fields import WritableMetadata, role_metadata
from phi4mm.modelfile.hparams.vision import VisionHParams


def mmproj_metadata(
    vision: VisionHParams | None, audio: AudioHParams | None, bundle_id: str | None
) -> WritableMetadata:
    """Every key of an mmproj file."""
    return (
        role_metadata(keys.ARCH_MMPROJ, keys.TYPE_MMPROJ, bundle_id)
        | {
            keys.Clip.HAS_VISION: vision is not None,
            keys.Clip.HAS_AUDIO: audio is not None,
            keys.Clip.USE_GELU: True,
        }
        | (vision.to_metadata() if vision else {})
        | (audio.to_metadata() if audio else {})
    )
