"""The one table of the modality rule: which adapter and which audio projection a conversation uses.

Source: the reference's ``InputMode`` branch (docs/model.md, "Modes").  The rule is decided per
conversation: one picture anywhere in its history makes it a vision conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Adapter = Literal["vision", "speech"]
AudioProjection = Literal["speech", "vision"]


@dataclass(frozen=True, slots=True)
class Mode:
    """What a combination of media asks of the model.

    Attributes:
        adapter: the LoRA adapter of the decoder, or None for the bare base.
        audio_projection: which of the two audio projectors clips go through, or None.
    """

    adapter: Adapter | None
    audio_projection: AudioProjection | None


# (has images, has audio) -> mode
MODES: dict[tuple[bool, bool], Mode] = {
    (False, False): Mode(adapter=None, audio_projection=None),
    (True, False): Mode(adapter="vision", audio_projection=None),
    (False, True): Mode(adapter="speech", audio_projection="speech"),
    (True, True): Mode(adapter="vision", audio_projection="vision"),
}


def mode_of(*, n_images: int, n_audios: int) -> Mode:
    """The mode of a conversation that holds this many pictures and clips."""
    return MODES[n_images > 0, n_audios > 0]
