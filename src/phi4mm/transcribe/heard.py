"""How much of a recording has been read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from phi4mm.media.audio import AudioStream, Samples


class Heard:
    """Counts how much of a recording was read.

    Attributes:
        audio: the recording, to be read through this.
    """

    def __init__(self, audio: AudioStream) -> None:
        self._n_samples, self._rate = 0, audio.rate
        self.audio = replace(audio, blocks=self._count(audio.blocks))

    @property
    def seconds(self) -> float:
        """Length of what was read."""
        return self._n_samples / self._rate

    def _count(self, blocks: Iterator[Samples]) -> Iterator[Samples]:
        for block in blocks:
            self._n_samples += len(block)
            yield block
