"""The lengths of many short strings at once: a vocabulary has two hundred thousand."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Lengths: TypeAlias = npt.NDArray[np.int64]

_WINDOW_BYTES: Final = 1 << 16
_HEAD_BYTES: Final = 8
_SHORT: Final = 256


def short_lengths(data: memoryview) -> Lengths:
    """Lengths in bytes of the strings that ``data`` begins with, each behind its length.

    A length below 256 is a number below 256 at its own place alone: one byte to either side, the
    same eight bytes hold a character or the length itself above the lowest byte.  So the places of
    such numbers are the places of the lengths, as long as each lies where the string before ends.
    Strings that hold a NUL, are empty or longer end the search, and so does a window of 64 KiB.

    Returns:
        (n,) int64, n of the strings, perhaps none; the last string may reach past the data.
    """
    window = np.frombuffer(data[:_WINDOW_BYTES], np.uint8)
    if len(window) < _HEAD_BYTES:
        return np.empty(0, np.int64)
    numbers: npt.NDArray[np.uint64] = np.ndarray(
        (len(window) - _HEAD_BYTES + 1,), "<u8", window, strides=(1,)
    )
    places = np.flatnonzero(numbers < _SHORT)
    lengths = numbers[places].astype(np.int64)
    expected = np.append(0, places + _HEAD_BYTES + lengths)[: len(places)]
    wrong = np.flatnonzero(places != expected)
    return lengths[: wrong[0]] if len(wrong) else lengths
