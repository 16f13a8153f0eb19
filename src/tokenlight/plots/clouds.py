"""Word clouds of classes: each token as large as it speaks for its class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.plots.characters import visible

WIDTH, HEIGHT = 900, 560
SHADES = 32  # of one colour and white: a fifth of the bytes, the same picture
MARKS = ("##", "Ġ", "▁", "Ċ")  # how tokenizers write "goes on" and "begins a word"
# Dark enough on white for small print; told apart by place and title, not by colour alone.
COLOURS = ("#9f2f1f", "#1f5fa8", "#2b6e3f", "#7a4fa3", "#8a5a00", "#444444")


def cloud(weights: Mapping[str, float], *, k: int = 50, colour: str = COLOURS[1]) -> Any:
    """The ``k`` tokens that speak most for one class, as an image (of Pillow)."""
    try:
        from wordcloud import WordCloud
    except ImportError as missing:
        raise MissingExtra.naming("wordcloud", "plots", "a word cloud") from missing
    sizes: dict[str, float] = {}
    for token, weight in top_tokens(weights, k):
        word = shown(token)
        sizes[word] = max(weight, sizes.get(word, 0.0))  # a word and its piece: the stronger
    if not sizes:
        raise BadInput("no token speaks for this class, so there is nothing to draw.")
    drawn = WordCloud(
        width=WIDTH,
        height=HEIGHT,
        background_color="white",
        max_words=k,
        prefer_horizontal=1.0,
        margin=8,  # two words side by side read as two
        relative_scaling=0.5,
        color_func=lambda *_, **__: colour,
        random_state=0,  # the same words lie in the same places
    )
    return drawn.generate_from_frequencies(sizes).to_image()


def top_tokens(weights: Mapping[str, float], k: int = 50) -> list[tuple[str, float]]:
    """The types that speak most for a class, at most ``k``; equal ones by name."""
    speaking = [(token, weight) for token, weight in weights.items() if weight > 0]
    return sorted(speaking, key=lambda pair: (-pair[1], pair[0]))[:k]


def shown(token: str) -> str:
    """A token type without its tokenizer's marks."""
    for mark in MARKS:
        token = token.removeprefix(mark)
    return visible(token) or "·"


def save_clouds(
    weights: Mapping[str, Mapping[str, float]], folder: str | Path, *, prefix: str = "", k: int = 50
) -> list[Path]:
    """One PNG a class, named after it."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    made = []
    for number, (label, own) in enumerate(weights.items()):
        name = "".join(c if c.isalnum() else "_" for c in label.lower())
        path = place / f"{prefix}{name}.png"
        drawn = cloud(own, k=k, colour=COLOURS[number % len(COLOURS)])
        drawn.quantize(SHADES).save(path, optimize=True)
        made.append(path)
    return made
