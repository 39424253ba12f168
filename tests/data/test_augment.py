"""Augmentation by hand: every random number is given, the result is worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from autosparse.data.augment import TRIES, centre_square, pad_crop_flip, random_box, resized_crop_flip


def test_pad_crop_flip_shifts_and_mirrors_each_image_by_its_own_numbers() -> None:
    image = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)
    images = image.expand(4, 2, 2, 3)
    # Offset 4 of 0..8 (0.5 * 9 = 4.5) is the image itself; 5 down drops the first row; 3 to the left brings a black column in.
    numbers = np.array([[0.5, 0.5, 0.9], [0.56, 0.5, 0.9], [0.5, 0.34, 0.9], [0.5, 0.34, 0.1]])
    unmoved, up, right, right_mirrored = pad_crop_flip(images, numbers)
    for channel in range(2):
        assert unmoved[channel].tolist() == [[1, 2, 3], [4, 5, 6]]
        assert up[channel].tolist() == [[4, 5, 6], [0, 0, 0]]
        assert right[channel].tolist() == [[0, 1, 2], [0, 4, 5]]
        assert right_mirrored[channel].tolist() == [[2, 1, 0], [5, 4, 0]]


def test_pad_crop_flip_reaches_every_corner_of_the_padding() -> None:
    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).expand(2, -1, -1, -1)
    first, last = pad_crop_flip(images, np.array([[0.0, 0.0, 0.5], [0.9999, 0.9999, 0.5]]))
    assert first[0, 4:, 4:].equal(images[0, 0, :4, :4])
    assert int(first[0, :4].sum()) == int(first[0, :, :4].sum()) == 0
    assert last[0, :4, :4].equal(images[0, 0, 4:, 4:])
    assert int(last[0, 4:].sum()) == int(last[0, :, 4:].sum()) == 0


def test_a_box_by_hand() -> None:
    # Area 0.08 + 0.5 * 0.92 = 0.54 of 200 * 100 = 10800; ratio 3/4 * (16/9)^0.5 = 1: sides of sqrt(10800) = 104 > 100, no fit.
    # Second try: the smallest area 1600 at ratio 1 is 40x40; left = int(0.5 * 161) = 80, top = int(0.25 * 61) = 15.
    numbers = np.zeros((TRIES, 4))
    numbers[0] = 0.5
    numbers[1] = 0, 0.5, 0.5, 0.25
    assert random_box(200, 100, numbers.ravel()) == (80, 15, 120, 55)


def test_a_long_image_that_no_try_fits_gives_its_middle() -> None:
    # Area 1 of 900x30 needs sides of 142 to 190: never within 30. The middle of ratio 4/3 is 40x30.
    numbers = np.ones((TRIES, 4)) * 0.9999
    assert random_box(900, 30, numbers.ravel()) == (430, 0, 470, 30)
    assert random_box(30, 900, numbers.ravel()) == (0, 430, 30, 470)


@given(
    width=st.integers(1, 600),
    height=st.integers(1, 600),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=4 * TRIES, max_size=4 * TRIES),
)
def test_a_box_lies_within_the_image_and_keeps_its_bounds(width: int, height: int, numbers: list[float]) -> None:
    left, top, right, bottom = random_box(width, height, np.array(numbers))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    if min(width, height) >= 200:  # where rounding to whole pixels matters little
        assert 0.73 < (right - left) / (bottom - top) < 1.37
        assert (right - left) * (bottom - top) >= 0.078 * width * height


def test_resized_crop_flip_takes_its_box_and_mirrors_below_one_half() -> None:
    left_half = Image.new("L", (8, 8))
    left_half.paste(200, (0, 0, 4, 8))
    whole = np.full(1 + 4 * TRIES, 0.0)
    whole[1], whole[2] = 1.0, 0.5  # the whole area at ratio 1
    for flip, expected in ((0.5, [200, 200, 0, 0]), (0.49, [0, 0, 200, 200])):
        whole[0] = flip
        row = np.array(resized_crop_flip(left_half, 4, whole))[0].tolist()
        assert row[0] == expected[0]
        assert row[3] == expected[3]
        assert row == sorted(row, reverse=expected[0] == 200)


def test_validation_takes_the_middle() -> None:
    stripes = Image.new("L", (448, 896))
    stripes.paste(255, (0, 384, 448, 512))  # a band of 128 rows in the middle of 896
    # Shorter side 448 to 256: 256x512, the band is rows 219.4 to 292.6; the middle square of 224 begins at 144.
    square = np.array(centre_square(stripes, 224, margin=True))
    assert square.shape == (224, 224)
    white = np.flatnonzero(square[:, 100] > 127)
    assert (white[0], white[-1]) == (75, 148)
    plain = centre_square(stripes, 224, margin=False)  # 224x448, the band is rows 192 to 256, the square begins at 112
    white = np.flatnonzero(np.array(plain)[:, 100] > 127)
    assert (white[0], white[-1]) == (80, 143)


def test_an_image_of_the_right_size_stays_as_it_is() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    assert np.array(centre_square(noise, 32, margin=False)).tolist() == np.array(noise).tolist()


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (333, 7), (255, 256)])
def test_any_image_becomes_a_square(size: tuple[int, int]) -> None:
    assert centre_square(Image.new("RGB", size), 17, margin=True).size == (17, 17)
    numbers = np.linspace(0, 0.99, 1 + 4 * TRIES)
    assert resized_crop_flip(Image.new("RGB", size), 17, numbers).size == (17, 17)
