"""Hyper-parameters of the audio encoder and its log-mel front end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from phi4mm.modelfile import keys
from phi4mm.modelfile.hparams.fields import (
    MAX_LAYERS,
    MAX_WIDTH,
    MIN_EPS,
    Field,
    FieldTable,
    WritableMetadata,
    check_fields,
    check_heads,
    construct,
    number_tuple,
    read_fields,
    require,
    write_fields,
)
from phi4mm.modelfile.keys import Key
from phi4mm.modelfile.metadata import Metadata

N_SUBSAMPLING_STAGES: Final = 3  # stride-2 convolutions before the conformer: structure, no setting


_AUDIO: Final[FieldTable] = {
    "n_mel": Field(keys.Audio.N_MEL, 1, 1 << 12),
    "n_embd": Field(keys.Audio.N_EMBD, 1, MAX_WIDTH),
    "n_ff": Field(keys.Audio.N_FF, 1, MAX_WIDTH),
    "n_layer": Field(keys.Audio.N_LAYER, 1, MAX_LAYERS),
    "n_head": Field(keys.Audio.N_HEAD, 1, MAX_WIDTH),
    "eps": Field(keys.Audio.EPS, MIN_EPS, 1),
    "n_embd_out": Field(keys.Audio.N_EMBD_OUT, 1, MAX_WIDTH),
    "subsampling": Field(keys.Audio.SUBSAMPLING, 2**N_SUBSAMPLING_STAGES, 2**N_SUBSAMPLING_STAGES),
    "chunk_size": Field(keys.Audio.CHUNK_SIZE, 1, 1 << 16),
    "conv_kernel_size": Field(keys.Audio.CONV_KERNEL, 1, 1 << 8),
    "bias_distance": Field(keys.Audio.BIAS_DISTANCE, 1, 1 << 16),
    "n_conv": Field(keys.Audio.N_CONV, 1, MAX_WIDTH),
}
_MEL: Final[FieldTable] = {
    "preemphasis": Field(keys.Mel.PREEMPHASIS, 0, 1),
    "scale": Field(keys.Mel.SCALE, 1e-6, 1e9),
    "max_hz": Field(keys.Mel.MAX_HZ, 1, 1e6),
    "floor": Field(keys.Mel.FLOOR, 1e-30, 1e6),
}
_MEL_ARRAYS: Final[Mapping[str, tuple[Key, int, int]]] = {
    "sample_rates": (keys.Mel.SAMPLE_RATES, 1000, 1 << 20),
    "window_lengths": (keys.Mel.WINDOW_LENGTHS, 2, 1 << 16),
    "hop_lengths": (keys.Mel.HOP_LENGTHS, 1, 1 << 16),
    "fft_sizes": (keys.Mel.FFT_SIZES, 2, 1 << 16),
}


@dataclass(frozen=True, slots=True)
class MelHParams:
    """The log-mel front end; entry i of each tuple belongs to ``sample_rates[i]``.

    Attributes:
        sample_rates: Hz: the full rate, then half of it.
        window_lengths: samples.
        hop_lengths: samples.
        fft_sizes: samples.
        preemphasis: coefficient, within a frame.
        scale: factor of the samples.
        max_hz: upper edge of the highest mel bin.
        floor: least power before the logarithm.
    """

    sample_rates: tuple[int, ...]
    window_lengths: tuple[int, ...]
    hop_lengths: tuple[int, ...]
    fft_sizes: tuple[int, ...]
    preemphasis: float
    scale: float
    max_hz: float
    floor: float

    def __post_init__(self) -> None:
        """Check every field against the others."""
        check_fields(self, _MEL)
        for name, (key, low, high) in _MEL_ARRAYS.items():
            values = getattr(self, name)
            require(
                len(values) == 2 and all(low <= value <= high for value in values),
                f"{key} is {list(values)[:8]}, must be 2 numbers from {low} to {high}",
            )
        for key, (full, half) in (
            (keys.Mel.SAMPLE_RATES, self.sample_rates),
            (keys.Mel.FFT_SIZES, self.fft_sizes),
        ):
            require(full == 2 * half, f"{key} is {[full, half]}, the first must be twice the last")
        for window, fft in zip(self.window_lengths, self.fft_sizes, strict=True):
            require(
                window <= fft and fft % 2 == 0,
                f"{keys.Mel.FFT_SIZES} has {fft}, must be even and hold a window of {window}",
            )
        require(
            self.max_hz <= self.sample_rates[0] / 2,
            f"{keys.Mel.MAX_HZ} is {self.max_hz:g}, must be at most {self.sample_rates[0] / 2:g}",
        )

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> MelHParams:
        """Read and check the keys of the front end.

        Raises:
            ModelFileError: a key is missing, has another type, or a value that cannot be.
        """
        arrays = {name: number_tuple(metadata, key) for name, (key, _, _) in _MEL_ARRAYS.items()}
        return construct(cls, metadata, read_fields(metadata, _MEL) | arrays)

    def to_metadata(self) -> WritableMetadata:
        """Every key of the front end."""
        arrays = {key: list(getattr(self, name)) for name, (key, _, _) in _MEL_ARRAYS.items()}
        return write_fields(self, _MEL) | arrays


@dataclass(frozen=True, slots=True)
class AudioHParams:
    """The audio encoder and its two projectors.

    Attributes:
        n_mel: mel bins of a frame.
        n_embd: width of the encoder.
        n_ff: width of its feed-forward layers.
        n_layer: blocks.
        n_head: attention heads.
        n_embd_out: width of the decoder.
        eps: epsilon of LayerNorm.
        subsampling: mel frames per token.
        chunk_size: tokens of an attention chunk.
        conv_kernel_size: taps of the causal depthwise convolution.
        bias_distance: distance of the relative attention bias; its table has twice as many rows.
        n_conv: channels of the subsampling.
        mel: the front end.
    """

    n_mel: int
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_embd_out: int
    eps: float
    subsampling: int
    chunk_size: int
    conv_kernel_size: int
    bias_distance: int
    n_conv: int
    mel: MelHParams

    def __post_init__(self) -> None:
        """Check every field against the others."""
        check_fields(self, _AUDIO)
        check_heads(keys.Audio.N_HEAD, self.n_head, self.n_embd)

    @property
    def n_embd_head(self) -> int:
        """Width of one head."""
        return self.n_embd // self.n_head

    @property
    def n_freq(self) -> int:
        """Frequency rows left of the mel bins after the stride-2 convolutions."""
        return -(-self.n_mel // 2**N_SUBSAMPLING_STAGES)

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> AudioHParams:
        """Read and check the keys of the audio encoder and its front end.

        Raises:
            ModelFileError: a key is missing, has another type, or a value that cannot be.
        """
        metadata.text(keys.Audio.PROJECTOR_TYPE, (keys.PROJECTOR,))
        values = read_fields(metadata, _AUDIO)
        return construct(cls, metadata, values | {"mel": MelHParams.from_metadata(metadata)})

    def to_metadata(self) -> WritableMetadata:
        """Every key of the audio encoder and its front end."""
        return (
            {keys.Audio.PROJECTOR_TYPE: keys.PROJECTOR}
            | write_fields(self, _AUDIO)
            | self.mel.to_metadata()
        )
