"""Crop plans and pixels against the references' answers in goldens/media.npz."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from phi4mm.errors import MediaError, ModelFileError
from phi4mm.media import crops
from phi4mm.media.crops import CropPlan, cut_crops, plan_crops
from phi4mm.media.params import ImageParams

HALF = (0.5, 0.5, 0.5)
PUBLISHED = ImageParams(crop_size=448, patch_size=14, max_crops=36, mean=HALF, std=HALF)
SMALL = ImageParams(crop_size=56, patch_size=14, max_crops=6, mean=HALF, std=HALF)

GOLDENS = np.load(Path(__file__).parents[1] / "goldens" / "media.npz")
PIXEL_STEPS = np.s_[:, :, 3::37, 5::41]
PICTURES = [
    tuple(map(int, name.removeprefix("pixels.").split("x")))
    for name in GOLDENS.files
    if name.startswith("pixels.")
]


def picture(width: int, height: int) -> Image.Image:
    texture = GOLDENS["texture"]
    rows, cols = -(-height // texture.shape[0]), -(-width // texture.shape[1])
    return Image.fromarray(np.tile(texture, (rows, cols, 1))[:height, :width])


def pixel_error(width: int, height: int) -> tuple[float, float]:
    """Largest error of the global crop and of the sub-crops."""
    plan = plan_crops(width, height, PUBLISHED)
    found = cut_crops(picture(width, height), plan, PUBLISHED)[PIXEL_STEPS]
    error = abs(found - GOLDENS[f"pixels.{width}x{height}"])
    return float(error[0].max()), float(error[1:].max())


def answer(width: int, height: int, max_crops: int) -> tuple[int, ...]:
    params = ImageParams(448, 14, max_crops, HALF, HALF)
    try:
        plan = plan_crops(width, height, params)
    except MediaError:
        return (-1,) * 5
    return plan.cols, plan.rows, plan.valid_rows, plan.valid_cols, plan.n_tokens


class TestPlan:
    def test_every_size_matches_the_references(self) -> None:
        plans = GOLDENS["plans"].tolist()
        assert sum(row[2] == 36 for row in plans) > 1000
        assert sum(row[3] == -1 for row in plans) > 20, "some are refused"
        wrong = [row for row in plans if answer(*row[:3]) != tuple(row[3:])]
        assert wrong == []

    def test_the_sizes_would_show_other_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plans = [row for row in GOLDENS["plans"].tolist() if row[2] == 36]
        monkeypatch.setattr(crops, "_MIN_SIDE", 9)
        assert any(answer(*row[:3]) != tuple(row[3:]) for row in plans)
        monkeypatch.undo()
        monkeypatch.setattr(crops, "_grid", first_nearest_grid)
        assert any(answer(*row[:3]) != tuple(row[3:]) for row in plans)

    @pytest.mark.parametrize(
        ("width", "height", "tokens"),
        [
            (448, 448, 545),
            (449, 448, 561),
            (640, 480, 1065),
            (1000, 450, 1351),
            (1344, 896, 1841),
            (150, 333, 417),
            (1920, 1080, 3918),
            (4032, 3024, 3393),
            (3000, 3000, 9585),
            (8000, 1000, 8497),
            (20, 20, 545),
        ],
    )
    def test_published_counts(self, width: int, height: int, tokens: int) -> None:
        assert plan_crops(width, height, PUBLISHED).n_tokens == tokens

    def test_a_plan_in_full(self) -> None:
        plan = plan_crops(700, 500, PUBLISHED)
        assert (plan.rows, plan.cols, plan.n_crops) == (2, 2, 4)
        assert (plan.canvas_width, plan.canvas_height) == (896, 896)
        assert (plan.resized_width, plan.resized_height) == (896, 640)
        assert (plan.valid_rows, plan.valid_cols) == (64 - 256 // 14, 64)
        assert (plan.pooled_rows, plan.pooled_cols) == (23, 32)
        assert plan.n_tokens == 16 * 17 + 1 + 23 * 33
        assert plan.crop_valid == ((32, 32), (32, 32), (32, 32), (14, 32), (14, 32))

    def test_small_settings_use_the_general_count(self) -> None:
        plan = plan_crops(60, 40, SMALL)
        assert (plan.rows, plan.cols, plan.resized_width, plan.resized_height) == (1, 2, 84, 56)
        assert (plan.valid_rows, plan.valid_cols) == (4, 6)
        assert plan.n_tokens == 2 * 2 + 2 + 1 + 2 * 3 + 2

    def test_sides_are_truncated(self) -> None:
        assert 150 * 448 / 333 > 201.8
        assert plan_crops(150, 333, PUBLISHED).resized_width == 201

    @given(st.integers(1, 20000), st.integers(1, 20000), st.sampled_from([PUBLISHED, SMALL]))
    def test_plans_hold_together(self, width: int, height: int, params: ImageParams) -> None:
        try:
            plan = plan_crops(width, height, params)
        except MediaError:
            return
        assert 1 <= plan.n_crops <= params.max_crops
        assert plan.resized_width <= plan.canvas_width
        assert plan.resized_height <= plan.canvas_height
        assert plan.canvas_width in (plan.resized_width, plan.cols * params.crop_size)
        side = params.patches_per_side
        valid = plan.crop_valid
        assert len(valid) == 1 + plan.n_crops
        # No crop is all padding: the encoder may divide by its valid counts.
        assert all(1 <= n <= side for pair in valid for n in pair)
        assert sum(rows for rows, _ in valid[1 :: plan.cols]) == plan.valid_rows
        assert sum(cols for _, cols in valid[1 : 1 + plan.cols]) == plan.valid_cols

    def test_equal_areas_never_tie(self) -> None:
        # So the order of grids of one area, which the reference leaves to a set, cannot matter.
        for most in (*range(1, 25), 36):
            areas: dict[Fraction, set[int]] = {}
            for i in range(1, most + 1):
                for j in range(1, most // i + 1):
                    areas.setdefault(Fraction(i, j), set()).add(i * j)
            ratios = sorted(areas)
            for low, high in pairwise(ratios):
                assert not areas[low] & areas[high]

    @pytest.mark.parametrize("size", [(1000, 1), (1, 1000), (30000, 17), (100000, 3)])
    def test_too_thin_says_what_would_do(self, size: tuple[int, int]) -> None:
        with pytest.raises(MediaError, match=r"at least 10 are needed") as caught:
            plan_crops(*size, PUBLISHED)
        message = str(caught.value)
        assert f"{size[0]}x{size[1]} pixels" in message
        enough = int(message.rsplit("at least ", 1)[1].split()[0])
        width, height = max(size[0], enough), max(size[1], enough)
        assert isinstance(plan_crops(width, height, PUBLISHED), CropPlan)

    def test_no_pixels(self) -> None:
        with pytest.raises(MediaError, match="0x9 pixels: must have at least 1x1"):
            plan_crops(0, 9, PUBLISHED)


def first_nearest_grid(width: int, height: int, params: ImageParams) -> tuple[int, int]:
    """The rule without its tie-break."""
    cols, rows = -(-width // params.crop_size), -(-height // params.crop_size)
    if cols * rows <= params.max_crops:
        return cols, rows
    grids = [(i, j) for i in range(1, 37) for j in range(1, 37) if i * j <= params.max_crops]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    return min(grids, key=lambda grid: abs(width / height - grid[0] / grid[1]))


class TestPixels:
    @pytest.mark.parametrize("size", PICTURES)
    def test_against_the_reference(self, size: tuple[int, int]) -> None:
        global_error, crop_error = pixel_error(*size)
        assert global_error <= 1e-6
        assert crop_error == 0.0

    def test_shape_type_and_order(self) -> None:
        image = Image.new("RGB", (896, 448), (255, 0, 0))
        image.paste((0, 0, 255), (448, 0, 896, 448))
        found = cut_crops(image, plan_crops(896, 448, PUBLISHED), PUBLISHED)
        assert found.shape == (3, 3, 448, 448)
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        assert found[:, :, 5, 5].tolist() == [[1, -1, -1], [1, -1, -1], [-1, -1, 1]]
        assert found[0, :, 5, 440].tolist() == [-1, -1, 1]

    @pytest.mark.parametrize(("width", "height"), [(448, 448), (200, 150), (96, 448)])
    def test_the_global_crop_of_one_crop_is_that_crop(self, width: int, height: int) -> None:
        image = Image.fromarray(
            np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
        )
        plan = plan_crops(width, height, PUBLISHED)
        whole, crop = cut_crops(image, plan, PUBLISHED)
        assert plan.n_crops == 1
        assert whole.tobytes() == crop.tobytes()

    def test_padding_is_white(self) -> None:
        found = cut_crops(Image.new("RGB", (448, 100)), plan_crops(448, 100, PUBLISHED), PUBLISHED)
        assert (found[1, :, :100] == -1).all()
        assert (found[1, :, 100:] == 1).all()

    def test_mean_and_std_are_per_channel(self) -> None:
        params = ImageParams(56, 14, 6, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
        image = Image.new("RGB", (56, 56), (51, 102, 255))
        found = cut_crops(image, plan_crops(56, 56, params), params)
        expected = [0.2, 0.8, 0.35]
        assert found[:, :, 9, 9] == pytest.approx(np.array([expected] * 2), abs=1e-6)

    def test_bicubic_at_fractional_steps(self) -> None:
        # A canvas is a whole multiple of a crop, so this never happens to one; 2e-6 allows for
        # float32 weights at any step.
        found = crops._global_crop(GOLDENS["texture"], 48, PUBLISHED)
        assert abs(found - GOLDENS["cubic.48"]).max() <= 2e-6


class TestPixelControls:
    """Mistakes that the pixel goldens must show."""

    def test_without_antialias(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def resize(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
            box = (image.width / size[0], 0, 0, 0, image.height / size[1], 0)
            return image.transform(size, Image.Transform.AFFINE, box, Image.Resampling.BILINEAR)

        monkeypatch.setattr(Image.Image, "resize", resize)
        assert pixel_error(3001, 2899)[1] > 0.1

    def test_pillows_bicubic_constant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(crops, "_CUBIC_A", -0.5)
        assert pixel_error(700, 500)[0] > 0.05

    def test_global_crop_with_antialias(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def antialiased(
            canvas: npt.NDArray[np.uint8], size: int, params: ImageParams
        ) -> npt.NDArray[np.float32]:
            image = Image.fromarray(canvas).resize((size, size), Image.Resampling.BICUBIC)
            return crops._normalise(np.asarray(image), params).transpose(2, 0, 1)

        monkeypatch.setattr(crops, "_global_crop", antialiased)
        assert pixel_error(1344, 896)[0] > 0.5


class TestParams:
    @pytest.mark.parametrize(
        ("numbers", "message"),
        [
            ((450, 14, 36, HALF, HALF), "crop size 450: must be a positive multiple of"),
            ((70, 14, 36, HALF, HALF), "twice the patch size, which is 14"),
            ((448, 0, 36, HALF, HALF), "crop size 448"),
            ((448, 14, 0, HALF, HALF), "maximum crops 0: must be at least 1"),
            ((448, 14, 36, HALF, (0.5, 0.5, 0.0)), "std above 0"),
            ((448, 14, 36, (0.5,), HALF), "must have 3 values each"),
        ],
    )
    def test_refused(self, numbers: tuple[object, ...], message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            ImageParams(*numbers)  # type: ignore[arg-type]
