"""The numbers of a model that its media front ends need.

Both classes are filled from a model file.  They refuse values that the front ends could not honour,
so the code behind them need not look again.  docs/model.md, "Vision" and "Audio", has the values of
the published model.
"""

from __future__ import annotations

from dataclasses import dataclass

from phi4mm.errors import ModelFileError


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ModelFileError(message)


@dataclass(frozen=True, slots=True)
class ImageParams:
    """How pictures are cut into crops and patches.

    Attributes:
        crop_size: side of a square crop in pixels; a multiple of twice the patch size, because
            patches are pooled two by two.
        patch_size: side of a square patch in pixels.
        max_crops: largest number of sub-crops, the global crop not counted.
        mean: subtracted per channel (red, green, blue), on a scale where white is 1.
        std: divided by per channel afterwards.
    """

    crop_size: int
    patch_size: int
    max_crops: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        _require(
            self.patch_size > 0
            and self.crop_size > 0
            and self.crop_size % (2 * self.patch_size) == 0,
            f"crop size {self.crop_size}: must be a positive multiple of "
            f"twice the patch size, which is {self.patch_size}",
        )
        _require(self.max_crops > 0, f"maximum crops {self.max_crops}: must be at least 1")
        _require(
            len(self.mean) == 3 and len(self.std) == 3 and min(self.std) > 0,
            f"image mean {self.mean} and std {self.std}: must have 3 values each, std above 0",
        )

    @property
    def patches_per_side(self) -> int:
        """Patches along one side of a crop."""
        return self.crop_size // self.patch_size


@dataclass(frozen=True, slots=True)
class FrameParams:
    """How samples at one rate are cut into frames.

    Attributes:
        sample_rate: in Hz.
        window: samples in a frame.
        hop: samples from one frame's start to the next one's.
        n_fft: points of the Fourier transform; a frame is padded with zeros to this length.
    """

    sample_rate: int
    window: int
    hop: int
    n_fft: int

    def __post_init__(self) -> None:
        _require(self.sample_rate > 0, f"sample rate {self.sample_rate} Hz: must be above 0")
        _require(
            1 < self.window <= self.n_fft and self.n_fft % 2 == 0 and self.hop > 0,
            f"frames of {self.window} samples, hop {self.hop}, FFT {self.n_fft} "
            f"at {self.sample_rate} Hz: need 1 < frame <= FFT, an even FFT and a hop above 0",
        )


@dataclass(frozen=True, slots=True)
class MelParams:
    """How clips become log-mel frames and audio tokens.

    Attributes:
        wide: frames at the full rate; the mel bank is laid over their spectrum.
        narrow: frames at the lower, telephone rate; same width of a Fourier bin as ``wide``.
        n_mels: mel bins per frame.
        top_hz: upper end of the mel bank in Hz; the lower end is 0.
        preemphasis: weight of the previous sample that is subtracted.
        scale: samples are multiplied by this (full scale of 16-bit audio).
        floor: smallest mel power before the logarithm.
        compression: frames per audio token.
    """

    wide: FrameParams
    narrow: FrameParams
    n_mels: int
    top_hz: float
    preemphasis: float
    scale: float
    floor: float
    compression: int

    def __post_init__(self) -> None:
        wide, narrow = self.wide, self.narrow
        _require(
            narrow.sample_rate < wide.sample_rate
            and narrow.sample_rate * wide.n_fft == wide.sample_rate * narrow.n_fft,
            f"FFT {narrow.n_fft} at {narrow.sample_rate} Hz and {wide.n_fft} at "
            f"{wide.sample_rate} Hz: the first rate must be lower and the bins equally wide",
        )
        _require(
            0 < self.top_hz <= wide.sample_rate / 2,
            f"mel bank up to {self.top_hz} Hz: must end within 0..{wide.sample_rate / 2} Hz",
        )
        _require(
            self.n_mels > 0 and self.floor > 0 and self.compression > 0,
            f"{self.n_mels} mel bins, floor {self.floor}, compression {self.compression}: "
            "all must be above 0",
        )

    def frames_at(self, rate: int) -> FrameParams:
        """The frame settings of clips at ``rate`` Hz, which must be one of the two rates.

        Raises:
            ModelFileError: the model has no settings for this rate.
        """
        for frames in (self.wide, self.narrow):
            if frames.sample_rate == rate:
                return frames
        raise ModelFileError(
            f"no frame settings for {rate} Hz: the model takes "
            f"{self.narrow.sample_rate} or {self.wide.sample_rate} Hz"
        )
