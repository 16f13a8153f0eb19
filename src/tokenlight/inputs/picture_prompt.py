"""A picture and a text in one row: the picture's patches among the tokens of a prompt."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from tokenlight.data.image import PatchImage
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, TextTooLong, way
from tokenlight.inputs.encode import check_tokenizer, readable
from tokenlight.inputs.picture import Picture, cut, processed, read, seen
from tokenlight.inputs.prompt import Chat, Laid, encode_prompt, laid_chat, located

IMAGE = "image"  # the name of the picture among a row's texts
# What processors give that is read here, or follows from the tokens and the picture.
KNOWN = {
    "input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels", "pixel_values",
    "image_grid_thw", "pixel_attention_mask", "image_sizes", "num_patches", "rows", "cols",
}  # fmt: skip


@dataclass(frozen=True)
class PictureReader:
    """What makes tokens of a picture and a text: ``token`` is the id that stands for a patch, ``grid``
    tells rows and columns of patches from ``channel height width``. Without a processor, pixels are read."""

    tokenizer: Any
    processor: Any
    token: int
    grid: Callable[[tuple[int, ...]], tuple[int, int]]

    def row(self, picture: Picture, limit: int | None, continuation: str | None = None) -> TokenRow:
        """The prompt with its patches, and what was written after it as its last segment."""
        if isinstance(picture.source, PatchImage) and self.processor is not None:
            return replace(self, processor=None).row(picture, limit, continuation)
        check_tokenizer(self.tokenizer)
        laid = self._laid(picture)
        text, template, made = laid.text, laid.template, picture.source
        ids: tuple[int, ...] = ()
        if not isinstance(made, PatchImage):
            made, text, template, ids = self._processed(picture, text)
        rows, columns = self.grid(made.pixels.shape)
        if not ids:
            text = text.replace(self.mark, self.mark * (rows * columns))
        # Where the mark parts what was said, it stands before and behind the picture.
        pieces = (
            ([piece], name)
            for (first, last), name in laid.parts
            for piece in laid.text[first:last].split(self.mark)
            if piece.strip()
        )
        prompt = located(text, pieces, template)
        row = encode_prompt(prompt, self.tokenizer, limit=None, continuation=continuation)
        if row.ids[: len(ids)] != ids:
            raise BadInput("the continuation changes how the prompt ends; begin it with a word.")
        _, height, width = made.pixels.shape
        image = cut(picture, made, (height // rows, width // columns))
        if limit is not None and len(row) > limit:
            said = f"picture and prompt have {len(row)} tokens but this model reads at most {limit}"
            raise TextTooLong(f"{said}; give a shorter text, or a smaller picture.")
        return self._patched(row, image)

    @property
    def mark(self) -> str:
        """What is written where the picture is to stand."""
        own = (getattr(self.processor, name, None) for name in ("boi_token", "image_token"))
        return str(next(filter(None, own), self.tokenizer.convert_ids_to_tokens(self.token)))

    def _laid(self, picture: Picture) -> Laid:
        """The text with the mark of the picture in it once: where the person wrote it, else in front."""
        prompt = picture.text
        if isinstance(prompt, Chat):
            holder = self.processor
            holder = holder if getattr(holder, "chat_template", None) else self.tokenizer
            laid = laid_chat(prompt, holder, pictured=True)
        elif prompt is None:
            give = way("Picture(…, text='What is this?')", "a text beside --image")
            raise BadInput(f"this model reads a picture with a text; give {give}.")
        else:
            readable(prompt)
            text = prompt if self.mark in prompt else self.mark + prompt
            laid = Laid(text, (((0, len(text)), "prompt"),))
        if laid.text.count(self.mark) != 1:
            marks = f"{laid.text.count(self.mark)} marks of a picture ({self.mark})"
            raise BadInput(f"the prompt has {marks}, and one is given; write it once or never.")
        return laid

    def _processed(
        self, picture: Picture, text: str
    ) -> tuple[PatchImage, str, bool, tuple[int, ...]]:
        """Pixels; the text as the processor hands it on, whether it holds special tokens; and its ids."""
        image, name = read(picture.source)
        processor, heard = copy(self.processor), _Heard(self.tokenizer)
        if processor is not None:
            processor.tokenizer = heard
        found = processed(processor, [image], "AutoProcessor.from_pretrained(…)", text=[text])
        unknown = sorted({*found} - KNOWN)
        if unknown:
            kind = type(processor).__name__
            raise BadInput(f"{kind} gives {unknown[0]!r}, whose meaning tokenlight does not know.")
        made = seen(found, processor.image_processor, image, name)
        return made, heard.text, not heard.adds, tuple(map(int, found["input_ids"][0]))

    def _patched(self, row: TokenRow, image: PatchImage) -> TokenRow:
        """The row with its patches as its first segment, each named ``row,column``."""
        places = tuple(place for place, i in enumerate(row.ids) if i == self.token)
        if len(places) != image.rows * image.columns:
            made = f"{len(places)} tokens for a picture of {image.rows} × {image.columns} vectors"
            raise BadInput(f"the prompt has {made}; use the processor of this very model.")
        names = dict(zip(places, image.names, strict=True))
        of = row.segments
        segments = [0 if i in names else None if s is None else s + 1 for i, s in enumerate(of)]
        return replace(
            row,
            pieces=tuple(names.get(i, piece) for i, piece in enumerate(row.pieces)),
            special=tuple(own and i not in names for i, own in enumerate(row.special)),
            segments=tuple(segments),
            texts=(image.name, *row.texts),
            names=(IMAGE, *row.names),
            image=replace(image, places=places),
        )


class _Heard:
    """A tokenizer that remembers what a processor gave it to read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.text, self.adds = tokenizer, "", True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, *others: Any, **how: Any) -> Any:
        self.text = text if isinstance(text, str) else text[0]
        self.adds = how.get("add_special_tokens", True)
        return self._tokenizer(text, *others, **how)
