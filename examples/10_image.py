"""Which patches of an image made a vision Transformer decide, and does hiding them change its mind?

A tiny ViT is first taught to name the colour of one patch in grey noise. With a model of your own:
Explainer.from_pretrained("folder or hub id").explain(Picture("cat.png")).
"""

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

from tokenlight import Explainer, Picture


def spotted(seed: int, count: int = 64) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Pixel values, where the coloured patch stands, and its colour."""
    chance = np.random.default_rng(seed)
    pixels = np.repeat(chance.normal(0, 0.3, (count, 1, 16, 16)), 3, axis=1).astype(np.float32)
    places, colours = chance.integers(0, 4, (count, 2)), chance.integers(0, 3, count)
    for picture, (row, column), colour in zip(pixels, 4 * places, colours, strict=True):
        picture[colour, row : row + 4, column : column + 4] += 2
    return pixels, places, torch.from_numpy(colours)


torch.manual_seed(0)
size = {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 64}
names = {0: "red", 1: "green", 2: "blue"}
model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, id2label=names, **size))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    optimizer.zero_grad()
    pixels, _, colours = spotted(step)
    model(pixel_values=torch.from_numpy(pixels), labels=colours).loss.backward()
    optimizer.step()

pixels, places, _ = spotted(seed=1000, count=8)
pictures = [Picture.from_pixels(image, mean=0.4, std=0.2) for image in pixels]
attributions = Explainer(model.eval()).explain(pictures, ["gae", "random"])
attributions[0].show()
print("the coloured patch:", places[0], "the top patch:", attributions[0].top(1)[0][0])
print(Explainer(model).evaluate(attributions, ["deletion", "insertion"]))
