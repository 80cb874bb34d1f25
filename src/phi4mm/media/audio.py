"""Clips: whatever libsndfile or PyAV decodes, or arrays, in; mono float32 at a model's rate out.

Differs from the reference: it thins samples by a whole factor, so that 44.1 kHz sound becomes
22.05 kHz sound declared as 16; here every rate is resampled properly (docs/model.md,
"Sampling-rate rules").
"""

from __future__ import annotations

import io
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from phi4mm.errors import MediaError, MediaTooLarge
from phi4mm.media.container import open_container
from phi4mm.media.params import FrameParams, MelParams
from phi4mm.media.sniff import HEAD_BYTES, container_name
from phi4mm.media.source import Source, one_line, open_source, require_contents, source_name

Samples = npt.NDArray[np.float32]
AudioSource: TypeAlias = Source | tuple[npt.NDArray[Any], int]

_FORMATS = "WAV, FLAC, OGG, MP3 or AIFF"
_BLOCK_VALUES = 1 << 20  # samples times channels decoded at a time: 4 MB
# Below, resampling multiplies data without adding sound; above, the filter outgrows any clip.
_MIN_RATE, _MAX_RATE = 1_000, 10_000_000
# Nominal samples are within 1.  Beyond this the mel power overflows float32, for the published
# settings; NaN and infinity are beyond it too.
_MAX_MAGNITUDE = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Decoded sound.

    Attributes:
        samples: float32 [n_samples], mono, nominally -1..1.
        rate: in Hz, one of the model's two rates.
        name: where it came from, for messages.
    """

    samples: Samples
    rate: int
    name: str

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.rate


def load_audio(
    source: AudioSource,
    params: MelParams,
    *,
    max_seconds: float | None = None,
    name: str | None = None,
) -> Clip:
    """Decode a clip, average its channels and bring it to a rate the model takes.

    The model's lower rate is kept and lower ones are raised to it; anything above is resampled to
    the full rate.  Samples outside -1..1 are left as they are.  A file that ends early without its
    decoder noticing, such as a WAV cut short, is used as far as it goes.

    Args:
        source: a path, a data URL, the bytes of a file, or (samples, rate in Hz) with samples [n]
            or [n, channels]; integers are scaled by their type's range, floats taken as they are.
        params: the rates, and the least length.
        max_seconds: longest clip, in seconds; None for no limit.
        name: what messages call it; None for the source's own name.

    Raises:
        MediaError: the source cannot be opened, is no sound, is damaged, has values that are not
            finite, is shorter than one frame or longer than the limit.
    """
    with _open_recording(source, name) as recording:
        return _to_clip(recording, params, max_seconds)


@dataclass(frozen=True, slots=True)
class AudioStream:
    """Sound while it is decoded, for what is too long to hold.

    Attributes:
        name: where it comes from, for messages.
        rate: of ``blocks`` in Hz, one of the model's two rates.
        duration_s: as the file declares it; None where it does not.
        blocks: mono float32 [n], read once.  Reading raises ``MediaError`` where data is damaged.
    """

    name: str
    rate: int
    duration_s: float | None
    blocks: Iterator[Samples]


@contextmanager
def open_audio(source: AudioSource, params: MelParams) -> Iterator[AudioStream]:
    """Open sound of any length; what ``load_audio`` says of channels and rates holds here too.

    Raises:
        MediaError: the source cannot be opened, is no sound, or its rate is out of range.
    """
    with _open_recording(source) as recording:
        yield _stream(recording, params)


@contextmanager
def read_audio(stream: BinaryIO, name: str, params: MelParams) -> Iterator[AudioStream]:
    """As ``open_audio``, from a file that is open and can seek, which stays open.

    Raises:
        MediaError: it is no sound, or its rate is out of range.
    """
    require_contents(stream, name)
    with _read_recording(stream, name) as recording:
        yield _stream(recording, params)


def _stream(recording: _Recording, params: MelParams) -> AudioStream:
    target = _frames_for(recording.rate, recording.name, params).sample_rate
    blocks = _resampled(recording, target)
    return AudioStream(recording.name, target, recording.duration_s, blocks)


@dataclass(frozen=True, slots=True)
class _Recording:
    """Sound as it was recorded: ``blocks`` are float32 [n, channels], read once."""

    name: str
    rate: int
    duration_s: float | None
    blocks: Iterator[Samples]


@contextmanager
def _open_recording(source: AudioSource, name: str | None = None) -> Iterator[_Recording]:
    if isinstance(source, tuple):
        yield _from_array(*source)
        return
    name = name or source_name(source, "audio")
    with open_source(source, name) as stream, _read_recording(stream, name) as recording:
        yield recording


@contextmanager
def _read_recording(stream: BinaryIO, name: str) -> Iterator[_Recording]:
    kind = container_name(stream.read(HEAD_BYTES))
    stream.seek(0)
    if kind is not None:
        with open_container(stream, name, kind) as track:
            yield _Recording(name, track.rate, track.duration_s, track.blocks)
        return
    with _open_sound(stream, name) as sound:
        rate = sound.samplerate
        yield _Recording(name, rate, sound.frames / rate, _decoded_blocks(sound, name))


def _resampled(recording: _Recording, target: int) -> Iterator[Samples]:
    resampler, is_empty = _Resampler(recording.rate, target), True
    for block in recording.blocks:
        yield resampler.feed(_mono(block, recording.name))
        is_empty = False
    if is_empty:
        raise MediaError(f"{recording.name}: has no samples; give at least one")
    yield resampler.flush()


def _to_clip(recording: _Recording, params: MelParams, max_seconds: float | None) -> Clip:
    name, rate = recording.name, recording.rate
    frames = _frames_for(rate, name, params)
    resampler = _Resampler(rate, frames.sample_rate)
    pieces, n_read = [], 0
    for block in recording.blocks:
        mono = _mono(block, name)
        n_read += len(mono)
        if max_seconds is not None and n_read > max_seconds * rate:
            raise MediaTooLarge(
                f"{name}: longer than the limit of {max_seconds:g} s; cut it into shorter clips",
                "seconds",
            )
        pieces.append(resampler.feed(mono))
    if n_read == 0:
        raise MediaError(f"{name}: has no samples; give at least {frames.window}")
    samples = np.concatenate([*pieces, resampler.flush()])
    if len(samples) < frames.window:
        raise MediaError(
            f"{name}: {n_read} samples at {rate} Hz are too short, they make {len(samples)} at "
            f"{frames.sample_rate} Hz; one frame needs {frames.window}"
        )
    return Clip(samples, frames.sample_rate, name)


def _frames_for(rate: int, name: str, params: MelParams) -> FrameParams:
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise MediaError(f"{name}: sample rate {rate} Hz; must be {_MIN_RATE}..{_MAX_RATE}")
    return params.narrow if rate <= params.narrow.sample_rate else params.wide


def _mono(block: Samples, name: str) -> Samples:
    with np.errstate(over="ignore", invalid="ignore"):  # judged just below
        mono: Samples = block.mean(axis=1, dtype=np.float32)
    if not np.abs(mono).max() <= _MAX_MAGNITUDE:  # also true of NaN
        raise MediaError(f"{name}: has samples that are NaN, infinite or huge; give -1..1")
    return mono


class _Resampler:
    """A band-limited change of rate, block by block; equal rates pass through."""

    def __init__(self, rate: int, target: int) -> None:
        self._stream = (
            None if rate == target else soxr.ResampleStream(rate, target, 1, quality="HQ")
        )

    def feed(self, mono: Samples) -> Samples:
        return mono if self._stream is None else self._stream.resample_chunk(mono)

    def flush(self) -> Samples:
        nothing = np.empty(0, np.float32)
        return nothing if self._stream is None else self._stream.resample_chunk(nothing, last=True)


class _VirtualFile:
    """A stream as soundfile wants it.

    It has no name, because soundfile takes a name ending in ``.raw`` for headerless samples.  A
    seek out of range stays put, which libsndfile notices; an exception would only be printed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.read, self.tell = stream.read, stream.tell

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return self._stream.seek(offset, whence)
        except (OSError, ValueError):
            return self._stream.tell()


def _open_sound(stream: BinaryIO, name: str) -> soundfile.SoundFile:
    try:
        return soundfile.SoundFile(_VirtualFile(stream))
    except soundfile.LibsndfileError as error:
        raise MediaError(
            f"{name}: is not audio libsndfile can read ({one_line(error)}); "
            f"give a complete {_FORMATS}"
        ) from error


def _decoded_blocks(sound: soundfile.SoundFile, name: str) -> Iterator[Samples]:
    n_block = max(1, _BLOCK_VALUES // sound.channels)
    while True:
        try:
            block = sound.read(n_block, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise MediaError(
                f"{name}: {sound.format} data is damaged or cut short "
                f"({one_line(error)}); give a complete file"
            ) from error
        if len(block) == 0:
            return
        yield block


def _from_array(samples: npt.NDArray[Any], rate: int) -> _Recording:
    name = "<audio samples>"
    array = np.asarray(samples)
    if array.dtype.kind not in "iuf":
        raise MediaError(f"{name}: of type {array.dtype}; give integers or floats")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0 or 0 < array.shape[0] < array.shape[1]:
        raise MediaError(f"{name}: of shape {np.shape(samples)}; give [n] or [n, channels]")
    try:
        rate = operator.index(rate)
    except TypeError:
        raise MediaError(f"{name}: sample rate {rate!r}; give whole Hz") from None
    duration_s = len(array) / rate if rate > 0 else None
    return _Recording(name, rate, duration_s, _array_blocks(array))


def _array_blocks(array: npt.NDArray[Any]) -> Iterator[Samples]:
    n_block = max(1, _BLOCK_VALUES // array.shape[1])
    for start in range(0, len(array), n_block):
        yield _to_float(array[start : start + n_block])


def _to_float(values: npt.NDArray[Any]) -> Samples:
    """Integers by the range of their type, the middle of unsigned ones being silence."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # beyond float32 it becomes infinite, which is refused
            return values.astype(np.float32)
    half = 2.0 ** (8 * values.dtype.itemsize - 1)
    middle = half if values.dtype.kind == "u" else 0.0
    return ((values.astype(np.float64) - middle) / half).astype(np.float32)
