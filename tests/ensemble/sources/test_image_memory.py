"""How many images are decoded at once, by what their headers say."""

import io

import numpy as np
import PIL.Image
import pytest

from ensemble import UserError
from ensemble.sources import image_memory
from ensemble.sources.image_memory import MAX_THREADS, stated_pixels, threads_for


def test_threads_together_take_half_of_the_memory(monkeypatch):
    monkeypatch.setattr(image_memory, "memory_bytes", lambda: 2 * 12_000_000)
    assert [threads_for(n, "x") for n in (1_000_000, 500_000, 333_334, 0)] == [1, 2, 2, MAX_THREADS]
    with pytest.raises(UserError, match=r"1,000,001 pixels.*12,000,012 bytes"):
        threads_for(1_000_001, "x")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "WEBP"])
def test_an_image_says_its_size(form):
    file = io.BytesIO()
    PIL.Image.fromarray(np.zeros((5, 300, 3), np.uint8)).save(file, form)
    assert stated_pixels(file.getvalue()) == 1500
    if form != "PNG":  # Of which OpenCV says it.
        with pytest.raises(ValueError, match="no image"):
            stated_pixels(file.getvalue()[:5])
