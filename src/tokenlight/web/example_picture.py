"""A picture to try a model with: a yellow sun in a blue sky over green grass."""

import base64
import io
from functools import cache

import numpy as np

from tokenlight.data.image import import_pillow

EXAMPLE_TITLE = "A sun over grass"
EXAMPLE_PROMPT = "What is in this picture?"
SIDE = 96  # pixels


@cache
def draw_example_picture() -> str:
    """Return the picture as a PNG file in base64."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pixels = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    pixels[:] = (120, 180, 235)
    is_sun = (rows - SIDE // 4) ** 2 + (columns - 2 * SIDE // 3) ** 2 <= (SIDE // 7) ** 2
    pixels[is_sun] = (250, 205, 60)
    pixels[rows >= 2 * SIDE // 3] = (80, 150, 70)
    stream = io.BytesIO()
    import_pillow("a picture to try").fromarray(pixels).save(stream, format="PNG")
    return base64.b64encode(stream.getvalue()).decode("ascii")
