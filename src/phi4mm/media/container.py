"""Sound inside containers that libsndfile does not read: M4A, WebM, video.  Needs PyAV.

PyAV is an optional extra; it is imported when such a file is opened, and a file that needs it where
it is missing is refused with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from phi4mm.errors import MediaError
from phi4mm.media.source import one_line


@dataclass(frozen=True, slots=True)
class ContainerSound:
    """The first sound track of a container.

    Attributes:
        rate: in Hz.
        duration_s: as the file declares it; None where it does not.
        blocks: float32 [n, channels], read once.
    """

    rate: int
    duration_s: float | None
    blocks: Iterator[npt.NDArray[np.float32]]


@contextmanager
def open_container(stream: BinaryIO, name: str, kind: str) -> Iterator[ContainerSound]:
    """Open the first sound track of ``stream``, which is of ``kind`` (for messages).

    Raises:
        MediaError: PyAV is not installed, the file is damaged, or it has no sound.
    """
    av = _import_av(name, kind)
    try:
        container = av.open(stream, mode="r", metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise MediaError(
            f"{name}: {kind} file is damaged or cut short ({one_line(error)}); give a complete file"
        ) from error
    with container:
        if not container.streams.audio:
            raise MediaError(f"{name}: {kind} file has no sound; give one with a sound track")
        track = container.streams.audio[0]
        ticks = track.duration
        yield ContainerSound(
            rate=track.rate,
            duration_s=None if ticks is None else float(ticks * track.time_base),
            blocks=_blocks(av, container, track, f"{name}: {kind}"),
        )


def _import_av(name: str, kind: str) -> Any:
    try:
        import av
    except ImportError as error:
        raise MediaError(
            f"{name}: is {kind}, which needs PyAV: pip install 'phi4mm[av]', or convert it to "
            "WAV, FLAC, OGG, MP3 or AIFF"
        ) from error
    return av


def _blocks(av: Any, container: Any, track: Any, what: str) -> Iterator[npt.NDArray[np.float32]]:
    # A track may change its layout or rate on the way; the resampler keeps what it began with.
    resampler = av.AudioResampler(format="fltp", layout=track.layout, rate=track.rate)
    try:
        for frame in container.decode(track):
            yield from (part.to_ndarray().T for part in resampler.resample(frame))
        yield from (part.to_ndarray().T for part in resampler.resample(None))
    except av.FFmpegError as error:
        raise MediaError(
            f"{what} data is damaged or cut short ({one_line(error)}); give a complete file"
        ) from error
