"""Media decoded and planned: what is known of a picture or a clip before anything is encoded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from PIL import Image

from phi4mm.errors import MediaError
from phi4mm.media.audio import AudioSource, Clip, load_audio
from phi4mm.media.crops import CropPlan, cut_crops, plan_crops
from phi4mm.media.image import MAX_PIXELS, ImageSource, image_name, load_image
from phi4mm.media.mel import log_mel, n_audio_tokens, n_frames
from phi4mm.media.params import FrameParams, ImageParams, MelParams
from phi4mm.modelfile.hparams import AudioHParams, VisionHParams


@dataclass(frozen=True)
class Picture:
    """A decoded picture with its crop plan.

    Attributes:
        image: upright RGB.
        plan: grid, canvas and token count.
        params: the constants the plan was made with.
    """

    image: Image.Image
    plan: CropPlan
    params: ImageParams

    @property
    def n_tokens(self) -> int:
        """Soft tokens the picture will fill."""
        return self.plan.n_tokens

    @cached_property
    def digest(self) -> str:
        """Hash of the decoded pixels: equal pictures have equal features."""
        width, height = self.image.size
        return hashlib.sha256(f"{width}x{height}:".encode() + self.image.tobytes()).hexdigest()

    def crops(self) -> npt.NDArray[np.float32]:
        """Pixels ``(1 + rows * cols, 3, crop_size, crop_size)``: global crop first."""
        return cut_crops(self.image, self.plan, self.params)


@dataclass(frozen=True)
class Sound:
    """A decoded clip with its token count.

    Attributes:
        clip: mono samples at a rate the front end knows.
        params: the constants of the front end.
    """

    clip: Clip
    params: MelParams

    @cached_property
    def n_tokens(self) -> int:
        """Soft tokens the clip will fill, 80 ms each."""
        frames = n_frames(len(self.clip.samples), self.clip.rate, self.params)
        return n_audio_tokens(frames, self.params)

    @cached_property
    def digest(self) -> str:
        """Hash of rate and samples."""
        return hashlib.sha256(
            f"{self.clip.rate}:".encode() + self.clip.samples.tobytes()
        ).hexdigest()

    def mel(self) -> npt.NDArray[np.float32]:
        """Log-mel features ``(n_frames, n_mels)``."""
        return log_mel(self.clip.samples, self.clip.rate, self.params)


def image_params(hparams: VisionHParams) -> ImageParams:
    """The picture front end's constants, from the mmproj file's."""
    return ImageParams(
        crop_size=hparams.image_size,
        patch_size=hparams.patch_size,
        max_crops=hparams.max_crops,
        mean=hparams.image_mean,
        std=hparams.image_std,
    )


def mel_params(hparams: AudioHParams) -> MelParams:
    """The audio front end's constants, from the mmproj file's."""
    mel = hparams.mel
    wide, narrow = (
        FrameParams(*numbers)
        for numbers in zip(
            mel.sample_rates, mel.window_lengths, mel.hop_lengths, mel.fft_sizes, strict=True
        )
    )
    return MelParams(
        wide=wide,
        narrow=narrow,
        n_mels=hparams.n_mel,
        top_hz=mel.max_hz,
        preemphasis=mel.preemphasis,
        scale=mel.scale,
        floor=mel.floor,
        compression=hparams.subsampling,
    )


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What a medium may hold at most.

    Attributes:
        image_pixels: width times height, looked at before pixels are decoded.
        audio_seconds: length of a clip; None for no limit.
    """

    image_pixels: int = MAX_PIXELS
    audio_seconds: float | None = None


NO_LIMITS = MediaLimits()


def open_picture(
    source: ImageSource, params: ImageParams, limits: MediaLimits = NO_LIMITS
) -> Picture:
    """Decode a picture and plan its crops.

    Raises:
        MediaError: it cannot be decoded, or its shape is beyond what the model takes.
    """
    image = load_image(source, max_pixels=limits.image_pixels)
    try:
        plan = plan_crops(*image.size, params)
    except MediaError as error:
        raise MediaError(f"{image_name(source)}: {error}") from None
    return Picture(image, plan, params)


def open_sound(source: AudioSource, params: MelParams, limits: MediaLimits = NO_LIMITS) -> Sound:
    """Decode a clip.

    Raises:
        MediaError: it cannot be decoded, or it is shorter than one frame.
    """
    return Sound(load_audio(source, params, max_seconds=limits.audio_seconds), params)
