"""How many images threads may decode at once, before they are decoded."""

import io
import os

from ensemble.errors import UserError
from ensemble.storage.memory import memory_bytes

# Pillow knows others. Some (EPS) are programs that it has another program run, and some (ICO) it
# decodes as it opens them, before their size can be checked.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
MAX_THREADS = min(32, (os.cpu_count() or 1) + 4)
_PNG, _PNG_SIZE = b"\x89PNG\r\n\x1a\n", slice(16, 24)
_BYTES_PER_PIXEL = 12
"""Pillow has 4, of an image up to three times: as it was, turned, and in another mode."""


def threads_for(num_pixels: int, what: str) -> int:
    """How many threads may decode images of some size: together they take half of the memory.

    What a thread has freed is mostly kept for it by malloc, so that waiting would be of no use.

    Args:
        num_pixels: of the largest image, as its header says.
        what: it is, for messages.

    Raises:
        UserError: already one would take more.
    """
    needed, allowed = max(1, num_pixels) * _BYTES_PER_PIXEL, memory_bytes() // 2
    if needed > allowed:
        raise UserError(
            f"{what} has {num_pixels:,} pixels, which take {needed:,} bytes of memory while they "
            f"are decoded, more than the {allowed:,} allowed here; make it smaller or remove it"
        )
    return min(MAX_THREADS, allowed // needed)


def stated_pixels(encoded: bytes) -> int:
    """How many pixels an encoded image says that it has, before it is decoded.

    Raises:
        ValueError: it is no image.
    """
    if encoded.startswith(_PNG):  # Small ones take Pillow longer than OpenCV needs to decode them.
        sides = encoded[_PNG_SIZE]
        return int.from_bytes(sides[:4], "big") * int.from_bytes(sides[4:], "big")
    import PIL.Image  # Only where such pictures are read.

    try:
        with PIL.Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            return image.height * image.width
    except Exception as error:  # Pillow's readers raise many types on bad bytes.
        raise ValueError("no image") from error


def png_header(height: int, width: int) -> bytes:
    """What a PNG file of this size begins with."""
    sides = height.to_bytes(4, "big"), width.to_bytes(4, "big")
    return b"".join((_PNG, b"\0\0\0\rIHDR", sides[1], sides[0]))
