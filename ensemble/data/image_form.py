"""The form of images: their size, the order of their axes, and their channels."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ensemble.config.builtin import read_size
from ensemble.errors import InputError, logger

if TYPE_CHECKING:
    import PIL.Image

Size = tuple[int, int]
"""Height and width in pixels."""
_RULE = "must be None, a side such as 64, or height x width such as '64x48', of 1 to 16384"
# Of red, green and blue in brightness, ITU-R Recommendation BT.601, as Pillow's mode L has it.
_GREY_WEIGHTS = np.array([19595, 38470, 7471]) / 2**16


def parse_size(value: Any) -> Size | None:
    """Reads `config.resize`.

    Args:
        value: None, the side of a square in pixels, or 'HxW'.

    Returns:
        (height, width) in pixels; None where nothing is to be resized.

    Raises:
        InputError: it is none of these.
    """
    if value is None:
        return None
    try:
        height, _, width = str(read_size(value)).partition("x")
    except ValueError:
        raise InputError(f"config.resize={value!r} {_RULE}") from None
    return int(height), int(width or height)


def resize_and_crop(image: "PIL.Image.Image", size: Size) -> "PIL.Image.Image":
    """Resizes an image so that it just covers a size, and cuts off evenly what is beyond it.

    Bilinear, and smoothed first where the image becomes smaller. An image of this size stays as it
    is.

    Args:
        image: of any size, in mode L or RGB.
        size: (height, width) in pixels.
    """
    import PIL.Image  # Only where pictures are read.
    import PIL.ImageOps  # Likewise.

    return PIL.ImageOps.fit(image, size[::-1], PIL.Image.Resampling.BILINEAR)


def other_size(what: str, size: Sequence[int], expected: Sequence[int]) -> InputError:
    """Returns the error of an image that has not the size of others.

    Args:
        what: The image.
        size: Its height and width.
        expected: Those of others.
    """
    by = "{}x{}".format
    return InputError(
        f"{what} has {by(*size)} pixels, not {by(*expected)} as others (height x width, upright); "
        "all must have one size: set config.resize, such as 64 or '64x48', which resizes them all"
    )


def is_channels_first(shape: Sequence[int]) -> bool:
    """Whether an example can only be (C, H, W): 1 or 3 channels, then sides longer than 4.

    (3, 3, 3) and (3, 32, 4) can be (H, W, C) too, and are taken as that.
    """
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 4


def in_form(inputs: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Brings images to the form of those that an ensemble has learned, where that needs no guess.

    `[N, H, W]` and `[N, C, H, W]` become `[N, H, W, C]`, grey images RGB, and RGB ones grey.

    Args:
        inputs: `[N, ...]`, numbers.
        shape: of one example that was learned.

    Returns:
        The inputs, which have another shape if they cannot be brought to this one.
    """
    if len(shape) != 3 or inputs.dtype.kind not in "buif" or inputs.shape[1:] == shape:
        return inputs
    if inputs.ndim == 3:
        inputs = inputs[..., None]
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.shape[2:] == shape[:2]:
        inputs = np.moveaxis(inputs, 1, -1)
    channels = inputs.shape[-1], shape[2]
    if inputs.shape[1:-1] != shape[:2]:
        return inputs
    if channels == (1, 3):
        return np.repeat(inputs, 3, axis=-1)
    if channels == (3, 1):
        grey = inputs.astype(np.float64) @ _GREY_WEIGHTS  # Exact, of whole numbers.
        if inputs.dtype.kind != "f":
            grey = np.floor(grey + 0.5)  # As Pillow rounds.
        return grey.astype(inputs.dtype)[..., None]
    return inputs


@cache  # Once is enough.
def warn_of_scale(largest: float) -> None:
    """Warns of inputs within 0..1 for a network of raw images of whole numbers.

    Args:
        largest: of the raw numbers.
    """
    logger.warning(
        "Inputs are floats within 0..1, but the ensemble learned raw images of whole numbers up to "
        "%g: give them as raw.",
        largest,
    )
