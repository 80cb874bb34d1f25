"""Dynamic crops: how a picture is resized, padded and cut, and how many tokens that makes.

``plan_crops`` is integer work on the picture's size and runs before anything is decoded at length;
``cut_crops`` does the pixels.  Source: docs/model.md, "Vision" (grid, token count).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from phi4mm.errors import MediaError
from phi4mm.media.params import ImageParams

Pixels = npt.NDArray[np.float32]

_MIN_SIDE = 10  # the reference refuses pictures that a resize would make thinner, in pixels
_CUBIC_A = -0.75  # torch's and OpenCV's constant; Pillow's bicubic has -0.5


@dataclass(frozen=True, slots=True)
class CropPlan:
    """How one picture is laid out; pixels unless said otherwise.

    The picture is resized to ``resized_width`` x ``resized_height``, put into the top left corner
    of a white canvas of ``rows`` x ``cols`` crops, and the canvas is cut.  A patch is valid unless
    it lies wholly in the padding.

    Attributes:
        width: of the picture.
        height: of the picture.
        rows: crops from top to bottom.
        cols: crops from left to right.
        resized_width: of the picture on the canvas.
        resized_height: of the picture on the canvas.
        crop_size: side of a crop.
        patch_size: side of a patch.
    """

    width: int
    height: int
    rows: int
    cols: int
    resized_width: int
    resized_height: int
    crop_size: int
    patch_size: int

    @property
    def canvas_width(self) -> int:
        """Width of the canvas."""
        return self.cols * self.crop_size

    @property
    def canvas_height(self) -> int:
        """Height of the canvas."""
        return self.rows * self.crop_size

    @property
    def n_crops(self) -> int:
        """Sub-crops; the encoder sees one more, the global crop."""
        return self.rows * self.cols

    @property
    def patches_per_side(self) -> int:
        """Patches along one side of a crop."""
        return self.crop_size // self.patch_size

    @property
    def valid_rows(self) -> int:
        """Rows of valid patches on the canvas."""
        padding = self.canvas_height - self.resized_height
        return self.rows * self.patches_per_side - padding // self.patch_size

    @property
    def valid_cols(self) -> int:
        """Columns of valid patches on the canvas."""
        padding = self.canvas_width - self.resized_width
        return self.cols * self.patches_per_side - padding // self.patch_size

    @property
    def crop_valid(self) -> tuple[tuple[int, int], ...]:
        """(valid rows, valid columns) of every encoder input, in patches: global crop first."""
        side = self.patches_per_side
        return (
            (side, side),
            *(
                (_clip(self.valid_rows - r * side, side), _clip(self.valid_cols - c * side, side))
                for r in range(self.rows)
                for c in range(self.cols)
            ),
        )

    @property
    def pooled_rows(self) -> int:
        """Rows of sub-crop tokens, after 2x2 pooling; a half valid row counts."""
        return -(-self.valid_rows // 2)

    @property
    def pooled_cols(self) -> int:
        """Sub-crop tokens in a row, its image newline not counted."""
        return -(-self.valid_cols // 2)

    @property
    def n_tokens(self) -> int:
        """Soft tokens of the picture, with a newline after every row and one view separator."""
        side = self.patches_per_side // 2
        global_tokens = side * (side + 1)
        return global_tokens + 1 + self.pooled_rows * (self.pooled_cols + 1)


def _clip(value: int, high: int) -> int:
    return max(0, min(value, high))


def plan_crops(width: int, height: int, params: ImageParams) -> CropPlan:
    """Lay out a picture of ``width`` x ``height`` pixels.

    Raises:
        MediaError: the picture has no pixels, or is so long and thin that resizing would leave it
            less than 10 pixels wide or high.
    """
    if width < 1 or height < 1:
        raise MediaError(f"picture of {width}x{height} pixels: must have at least 1x1")
    cols, rows = _grid(width, height, params)
    scale_x = cols * params.crop_size / width
    scale_y = rows * params.crop_size / height
    # The truncated float64 product is the reference's arithmetic; it can lose a pixel.
    if scale_x < scale_y:
        resized_width, resized_height = cols * params.crop_size, int(height * scale_x)
    else:
        resized_width, resized_height = int(width * scale_y), rows * params.crop_size
    if min(resized_width, resized_height) < _MIN_SIDE:
        raise MediaError(_too_thin(width, height, min(scale_x, scale_y)))
    return CropPlan(
        width=width,
        height=height,
        rows=rows,
        cols=cols,
        resized_width=resized_width,
        resized_height=resized_height,
        crop_size=params.crop_size,
        patch_size=params.patch_size,
    )


def _too_thin(width: int, height: int, scale: float) -> str:
    side = "high" if height < width else "wide"
    return (
        f"picture of {width}x{height} pixels is too long and thin: resized, it would be "
        f"{int(min(width, height) * scale)} pixels {side}, at least {_MIN_SIDE} are needed; "
        f"crop it or make it at least {math.ceil(_MIN_SIDE / scale)} pixels {side}"
    )


def _grid(width: int, height: int, params: ImageParams) -> tuple[int, int]:
    """(columns, rows) of the canvas.

    A picture that fits keeps the grid that covers it; a larger one gets the grid whose ratio is
    nearest.  Between two equally near, the one of larger area wins if the picture fills over half.

    Differs from the reference: it takes grids of equal area in the order of a Python set, here they
    are ordered by columns.  Only an exact tie between two of them could tell, and there is none:
    no two neighbouring ratios have grids of the same area.
    """
    size, most = params.crop_size, params.max_crops
    cols, rows = -(-width // size), -(-height // size)
    if cols * rows <= most:
        return cols, rows
    grids = [(i, j) for i in range(1, most + 1) for j in range(1, most // i + 1)]
    grids.sort(key=lambda grid: (grid[0] * grid[1], grid[0]))
    best, best_gap = (1, 1), math.inf
    for i, j in grids:
        gap = abs(width / height - i / j)
        fills_half = width * height > 0.5 * size * size * i * j
        if gap < best_gap or (gap == best_gap and fills_half):
            best, best_gap = (i, j), gap
    return best


def cut_crops(image: Image.Image, plan: CropPlan, params: ImageParams) -> Pixels:
    """The encoder's input for one picture.

    Args:
        image: 8-bit RGB of the size that ``plan`` was made for.
        plan: from ``plan_crops`` with the same ``params``.
        params: mean and std.

    Returns:
        float32 [1 + n_crops, 3, crop_size, crop_size]: the global crop, then the sub-crops row by
        row.

    Source: docs/model.md, "Grid".  The resize is Pillow's bilinear filter, whose support grows when
    shrinking; the global crop is a four-tap bicubic of the padded, normalised canvas, without.
    """
    assert image.mode == "RGB"
    assert image.size == (plan.width, plan.height)
    size = plan.crop_size
    canvas = _canvas(image, plan)
    crops = np.empty((1 + plan.n_crops, 3, size, size), np.float32)
    crops[0] = _global_crop(canvas, size, params)
    for index in range(plan.n_crops):
        row, col = divmod(index, plan.cols)
        tile = canvas[row * size : (row + 1) * size, col * size : (col + 1) * size]
        crops[1 + index] = _normalise(tile, params).transpose(2, 0, 1)
    return crops


def _canvas(image: Image.Image, plan: CropPlan) -> npt.NDArray[np.uint8]:
    """uint8 [canvas_height, canvas_width, 3]."""
    resized = image.resize(
        (plan.resized_width, plan.resized_height), resample=Image.Resampling.BILINEAR
    )
    canvas = np.full((plan.canvas_height, plan.canvas_width, 3), 255, np.uint8)
    canvas[: plan.resized_height, : plan.resized_width] = np.asarray(resized)
    return canvas


def _normalise(pixels: npt.NDArray[np.uint8], params: ImageParams) -> Pixels:
    """(pixels / 255 - mean) / std over the last axis, in float32 throughout."""
    mean, std = np.asarray(params.mean, np.float32), np.asarray(params.std, np.float32)
    normalised: Pixels = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    return normalised


def _global_crop(canvas: npt.NDArray[np.uint8], size: int, params: ImageParams) -> Pixels:
    """float32 [3, size, size]: bicubic samples of the canvas, read where the taps fall."""
    row_taps, row_weights = _cubic_taps(canvas.shape[0], size)
    col_taps, col_weights = _cubic_taps(canvas.shape[1], size)
    view = np.zeros((size, size, 3), np.float32)
    for rows, row_weight in zip(row_taps, row_weights, strict=True):
        line = np.zeros_like(view)
        for cols, col_weight in zip(col_taps, col_weights, strict=True):
            line += col_weight[:, None] * _normalise(canvas[rows[:, None], cols], params)
        view += row_weight[:, None, None] * line
    channels_first: Pixels = view.transpose(2, 0, 1)
    return channels_first


def _cubic_taps(n_in: int, n_out: int) -> tuple[npt.NDArray[np.intp], Pixels]:
    """Where a cubic convolution reads and how much: indices and weights, [4, n_out] each.

    Half-pixel centres; reads beyond an edge take the edge.  Source: Keys (1981), and
    ``torch.nn.functional.interpolate(mode="bicubic", align_corners=False)``.
    """
    scale = float(np.float32(n_in / n_out))
    # A float32 multiply-add rounds once; separate steps would be 3e-6 off in the result.
    centre = ((np.arange(n_out) + 0.5) * scale - 0.5).astype(np.float32)
    left = np.floor(centre)
    offsets = np.arange(-1, 3, dtype=np.float32)[:, None]  # of the four taps from the left one
    d = np.abs((centre - left) - offsets)  # [4, n_out]
    a = _CUBIC_A
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weights = np.where(d <= 1, near, far).astype(np.float32)
    return np.clip(left + offsets, 0, n_in - 1).astype(np.intp), weights
