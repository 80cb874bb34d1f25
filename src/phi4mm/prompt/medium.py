"""Media decoded and planned: what is known of a picture or a clip before anything is encoded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from phi4mm.errors import MediaError
from phi4mm.media.audio import AudioSource, Clip, load_audio
from phi4mm.media.crops import CropPlan, cut_crops, plan_crops
from phi4mm.media.image import MAX_PIXELS, ImageSource, image_name, load_image
from phi4mm.media.mel import log_mel, n_audio_tokens, n_frames
from phi4mm.media.params import FrameParams, ImageParams, MelParams
from phi4mm.media.source import is_data_url
from phi4mm.modelfile.hparams import AudioHParams, VisionHParams

Contents: TypeAlias = bytes | str


@dataclass(frozen=True)
class Picture:
    """A picture that was decoded and planned.

    Attributes:
        source: contents of a file that it can be decoded from again; None for anything else.
        plan: grid, canvas and token count.
        params: the constants the plan was made with.
        digest: hash of the decoded pixels: equal pictures have equal features.
        pixels: upright RGB; None to decode them again if they are needed.
        is_kept: whether its embeddings are worth keeping for another prompt.
    """

    source: Contents | None
    plan: CropPlan
    params: ImageParams
    digest: str
    pixels: Image.Image | None = field(compare=False, repr=False)
    is_kept: bool = field(default=True, compare=False)

    @property
    def n_tokens(self) -> int:
        """Soft tokens the picture will fill."""
        return self.plan.n_tokens

    @property
    def image(self) -> Image.Image:
        """Upright RGB."""
        if self.pixels is not None:
            return self.pixels
        assert self.source is not None
        return load_image(self.source)

    def crops(self) -> npt.NDArray[np.float32]:
        """Pixels ``(1 + rows * cols, 3, crop_size, crop_size)``: global crop first."""
        return cut_crops(self.image, self.plan, self.params)

    def light(self) -> Picture:
        """The same without its pixels, if they can be had again."""
        return self if self.source is None else replace(self, pixels=None)


@dataclass(frozen=True)
class Sound:
    """A clip that was decoded.

    Attributes:
        source: contents of a file that it can be decoded from again; None for anything else.
        params: the constants of the front end.
        n_tokens: soft tokens the clip will fill, 80 ms each.
        digest: hash of rate and samples.
        decoded: mono samples at a rate the front end knows; None to decode them again if they are
            needed.
        is_kept: whether its embeddings are worth keeping for another prompt.
    """

    source: Contents | None
    params: MelParams
    n_tokens: int
    digest: str
    decoded: Clip | None = field(compare=False, repr=False)
    is_kept: bool = field(default=True, compare=False)

    @property
    def clip(self) -> Clip:
        """Mono samples at a rate the front end knows."""
        if self.decoded is not None:
            return self.decoded
        assert self.source is not None
        return load_audio(self.source, self.params)

    def mel(self) -> npt.NDArray[np.float32]:
        """Log-mel features ``(n_frames, n_mels)``."""
        clip = self.clip
        return log_mel(clip.samples, clip.rate, self.params)

    def light(self) -> Sound:
        """The same without its samples, if they can be had again."""
        return self if self.source is None else replace(self, decoded=None)


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
    source: ImageSource,
    params: ImageParams,
    limits: MediaLimits = NO_LIMITS,
    name: str | None = None,
) -> Picture:
    """Decode a picture and plan its crops.

    Args:
        source: the picture.
        params: the constants of the front end.
        limits: what it may hold.
        name: what messages call it; None for the source's own name.

    Raises:
        MediaError: it cannot be decoded, or its shape is beyond what the model takes.
    """
    image = load_image(source, max_pixels=limits.image_pixels, name=name)
    try:
        plan = plan_crops(*image.size, params)
    except MediaError as error:
        raise MediaError(f"{name or image_name(source)}: {error}") from None
    width, height = image.size
    digest = hashlib.sha256(f"{width}x{height}:".encode() + image.tobytes()).hexdigest()
    return Picture(contents_of(source), plan, params, digest, image)


def open_sound(
    source: AudioSource,
    params: MelParams,
    limits: MediaLimits = NO_LIMITS,
    name: str | None = None,
) -> Sound:
    """Decode a clip.

    Args:
        source: the clip.
        params: the constants of the front end.
        limits: what it may hold.
        name: what messages call it; None for the source's own name.

    Raises:
        MediaError: it cannot be decoded, or it is shorter than one frame.
    """
    clip = load_audio(source, params, max_seconds=limits.audio_seconds, name=name)
    n_tokens = n_audio_tokens(n_frames(len(clip.samples), clip.rate, params), params)
    digest = hashlib.sha256(f"{clip.rate}:".encode() + clip.samples.tobytes()).hexdigest()
    return Sound(contents_of(source), params, n_tokens, digest, clip)


def contents_of(source: ImageSource | AudioSource) -> Contents | None:
    """A source that cannot change: the bytes of a file or a data URL; None for any other."""
    if isinstance(source, bytes) or (isinstance(source, str) and is_data_url(source)):
        return source
    return None
