"""Hyper-parameters of the vision encoder."""

from __future__ import annotations

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
from phi4mm.modelfile.metadata import Metadata

N_CHANNELS: Final = 3

_MAX_SIDE: Final = 1 << 13


_VISION: Final[FieldTable] = {
    "image_size": Field(keys.Vision.IMAGE_SIZE, 2, _MAX_SIDE),
    "patch_size": Field(keys.Vision.PATCH_SIZE, 1, _MAX_SIDE),
    "n_embd": Field(keys.Vision.N_EMBD, 1, MAX_WIDTH),
    "n_ff": Field(keys.Vision.N_FF, 1, MAX_WIDTH),
    "n_layer": Field(keys.Vision.N_LAYER, 1, MAX_LAYERS),
    "n_head": Field(keys.Vision.N_HEAD, 1, MAX_WIDTH),
    "eps": Field(keys.Vision.EPS, MIN_EPS, 1),
    "n_embd_out": Field(keys.Vision.N_EMBD_OUT, 1, MAX_WIDTH),
    "max_crops": Field(keys.Vision.MAX_CROPS, 1, 1 << 12),
    "pool": Field(keys.Vision.POOL, 2, 2),  # the crop arrangement is defined for pairs of patches
}


@dataclass(frozen=True, slots=True)
class VisionHParams:
    """The vision encoder and its projector.

    Attributes:
        image_size: side of a crop in pixels.
        patch_size: side of a patch in pixels.
        n_embd: width of the encoder.
        n_ff: width of its feed-forward layer, unpadded.
        n_layer: layers, up to the feature layer.
        n_head: attention heads.
        n_embd_out: width of the decoder.
        eps: epsilon of LayerNorm.
        image_mean: mean per channel, of pixels in 0..1.
        image_std: deviation per channel, of pixels in 0..1.
        max_crops: most sub-crops of a picture.
        pool: side of the average pooling, in patches.
    """

    image_size: int
    patch_size: int
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_embd_out: int
    eps: float
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    max_crops: int
    pool: int

    def __post_init__(self) -> None:
        """Check every field against the others."""
        check_fields(self, _VISION)
        check_heads(keys.Vision.N_HEAD, self.n_head, self.n_embd)
        step = self.patch_size * self.pool
        require(
            self.image_size % step == 0,
            f"{keys.Vision.IMAGE_SIZE} is {self.image_size}, must be a multiple of {step}, "
            f"the patch size times the pooling",
        )
        for key, values, low in (
            (keys.Vision.IMAGE_MEAN, self.image_mean, 0.0),
            (keys.Vision.IMAGE_STD, self.image_std, 1e-3),
        ):
            require(
                len(values) == N_CHANNELS and all(low <= value <= 1 for value in values),
                f"{key} is {list(values)}, must be {N_CHANNELS} numbers from {low:g} to 1",
            )

    @property
    def n_embd_head(self) -> int:
        """Width of one head."""
        return self.n_embd // self.n_head

    @property
    def n_side(self) -> int:
        """Patches along a side of a crop."""
        return self.image_size // self.patch_size

    @property
    def n_patches(self) -> int:
        """Patches of a crop."""
        return self.n_side**2

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> VisionHParams:
        """Read and check the keys of the vision encoder.

        Raises:
            ModelFileError: a key is missing, has another type, or a value that cannot be.
        """
        metadata.text(keys.Vision.PROJECTOR_TYPE, (keys.PROJECTOR,))
        values = read_fields(metadata, _VISION) | {
            "image_mean": number_tuple(metadata, keys.Vision.IMAGE_MEAN),
            "image_std": number_tuple(metadata, keys.Vision.IMAGE_STD),
        }
        return construct(cls, metadata, values)

    def to_metadata(self) -> WritableMetadata:
        """Every key of the vision encoder."""
        return {keys.Vision.PROJECTOR_TYPE: keys.PROJECTOR} | write_fields(self, _VISION) | {
            keys.Vision.IMAGE_MEAN: list(self.image_mean),
            keys.Vision.IMAGE_STD: list(self.image_std),
        }  # fmt: skip
