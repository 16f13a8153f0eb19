"""A server's models that read pictures: an image classifier, and one that reads a prompt, too."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from tests.helpers import image_models, image_text_models
from tests.helpers.image_models import PATCH, SIDE
from tokenlight import Explainer
from tokenlight.web.models import AllowList, ServedModel


def encode_image(image_format: str = "PNG", size: tuple[int, int] = (SIDE, SIDE)) -> bytes:
    """Return the bytes of a file with a picture of noise."""
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, format=image_format)
    return stream.getvalue()


class PromptProcessor:
    """A processor of pictures and texts that resizes to what the tiny models read."""

    image_token = "<image>"

    def __init__(self) -> None:
        self.image_processor = ResizingProcessor()
        self.tokenizer = image_text_models.make_image_tokenizer()

    def __call__(self, images, text, return_tensors):
        (prompt,) = text
        num_patches = (SIDE // PATCH) ** 2
        expanded = prompt.replace("<image>", "<image> " * num_patches)
        outputs = self.tokenizer([expanded], return_tensors=return_tensors)
        return {**outputs, **self.image_processor(images[0], return_tensors)}


class ResizingProcessor(image_models.Processor):
    """The processor of the tiny models, which first resizes a picture."""

    def __call__(self, images, return_tensors):
        return super().__call__(images.resize((SIDE, SIDE)), return_tensors)


def make_picture_models() -> AllowList:
    """Return "classifier", which classifies pictures, and "captioner", which continues a prompt about one."""
    classifier = Explainer(image_models.build_model("vit"), ResizingProcessor(), name="classifier")
    captioner_model = image_text_models.build_model("llava siglip")
    captioner = Explainer(captioner_model, PromptProcessor(), name="captioner")
    return AllowList([ServedModel("classifier", classifier), ServedModel("captioner", captioner)])
