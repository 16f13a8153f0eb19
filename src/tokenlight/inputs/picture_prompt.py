"""An image and a text in one row: the patches of the image among the tokens of a prompt."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tokenlight.data.image import PatchImage
from tokenlight.data.tokenizer import tokenizer_panics_as_errors
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import check_text, check_tokenizer
from tokenlight.inputs.limited import find_limited_runner
from tokenlight.inputs.picture import (
    Picture,
    build_patch_image,
    read_image,
    run_processor,
    split_into_patches,
)
from tokenlight.inputs.prompt import Chat, encode_prompt, lay_out_chat
from tokenlight.inputs.prompt_layout import PromptLayout, locate_parts

IMAGE_SEGMENT = "image"  # name of the image among the segments
# Outputs of processors that are used here, or that follow from the tokens and the image.
KNOWN_PROCESSOR_OUTPUTS = {
    "input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels", "pixel_values",
    "image_grid_thw", "pixel_attention_mask", "image_sizes", "num_patches", "rows", "cols",
}  # fmt: skip


class _ProcessedPrompt(NamedTuple):
    """The output of a processor for an image and a text."""

    image: PatchImage
    text: str  # as the processor passes it to the tokenizer
    has_special_tokens: bool
    ids: tuple[int, ...]


@dataclass(frozen=True)
class PicturePromptEncoder:
    """Creates rows of tokens from an image and a text.

    Args:
        tokenizer: The model's tokenizer.
        processor: The model's processor; without one, the image must be given as pixel values.
        image_token_id: The id that stands for a patch.
        grid_shape: Returns rows and columns of patches, given ``channel height width``.
    """

    tokenizer: Any
    processor: Any
    image_token_id: int
    grid_shape: Callable[[tuple[int, ...]], tuple[int, int]]

    def encode(
        self, picture: Picture, max_tokens: int | None, continuation: str | None = None
    ) -> TokenRow:
        """Tokenize a prompt with its patches.

        Args:
            picture: The image and its text.
            max_tokens: Most tokens that the model reads; None for no limit.
            continuation: The text after the prompt; it becomes the last segment.

        Raises:
            BadInput: The prompt or the processor does not suit the model.
            TextTooLong: Image and prompt have more than ``max_tokens`` tokens.
        """
        if isinstance(picture.source, PatchImage) and self.processor is not None:
            # Pixel values are given, so there is nothing to process.
            return replace(self, processor=None).encode(picture, max_tokens, continuation)
        check_tokenizer(self.tokenizer)
        layout = self._lay_out_prompt(picture)
        processed = self._process(picture, layout)
        prompt = self._locate_prompt(layout, processed)
        row = encode_prompt(prompt, self.tokenizer, max_tokens=None, continuation=continuation)
        if row.ids[: len(processed.ids)] != processed.ids:
            raise BadInput(
                "The continuation changes how the end of the prompt is tokenized. Begin it with a word.",
                code="continuation-changes-prompt",
            )
        if max_tokens is not None and len(row) > max_tokens:
            raise TextTooLong(
                f"The image and prompt have {len(row)} tokens, but this model reads at most {max_tokens}. "
                "Give a shorter text, or a smaller image.",
                code="picture-prompt-too-long",
            )
        _, height, width = processed.image.pixels.shape
        rows, columns = self.grid_shape(processed.image.pixels.shape)
        image = split_into_patches(picture, processed.image, (height // rows, width // columns))
        return self._insert_patches(row, image)

    @property
    def image_marker(self) -> str:
        """The text that marks where the image belongs."""
        for name in ("boi_token", "image_token"):
            marker = getattr(self.processor, name, None)
            if marker:
                return str(marker)
        return str(self.tokenizer.convert_ids_to_tokens(self.image_token_id))

    def _lay_out_prompt(self, picture: Picture) -> PromptLayout:
        """Return the text with one marker of the image: where the user wrote it, else at the beginning."""
        prompt = picture.text
        if isinstance(prompt, Chat):
            has_template = getattr(self.processor, "chat_template", None)
            template_holder = self.processor if has_template else self.tokenizer
            layout = lay_out_chat(prompt, template_holder, has_image=True)
        elif prompt is None:
            raise BadInput(
                "This model reads an image with a text. Give Picture(…, text='What is this?').",
                code="picture-without-text",
            )
        else:
            check_text(prompt)
            text = prompt if self.image_marker in prompt else self.image_marker + prompt
            layout = PromptLayout(text, (((0, len(text)), "prompt"),))
        num_markers = layout.text.count(self.image_marker)
        if num_markers != 1:
            raise BadInput(
                f"The prompt has {num_markers} image markers ({self.image_marker}) for one image. Write "
                "the marker once or not at all.",
                code="image-marker-count",
            )
        return layout

    def _process(self, picture: Picture, layout: PromptLayout) -> _ProcessedPrompt:
        """Return pixels, text and ids, by the processor or, for given pixels, without it."""
        image = picture.source
        if not isinstance(image, PatchImage):
            return self._run_processor(picture, layout.text)
        # The marker stands for every patch.
        rows, columns = self.grid_shape(image.pixels.shape)
        text = layout.text.replace(self.image_marker, self.image_marker * (rows * columns))
        return _ProcessedPrompt(image, text, layout.has_special_tokens, ())

    def _run_processor(self, picture: Picture, text: str) -> _ProcessedPrompt:
        image, name = read_image(picture.source)
        processor = copy(self.processor)
        recorder = _RecordingTokenizer(self.tokenizer)
        if processor is not None:
            processor.tokenizer = recorder
        outputs = run_processor(processor, [image], "AutoProcessor.from_pretrained(…)", text=[text])
        unknown = sorted(set(outputs) - KNOWN_PROCESSOR_OUTPUTS)
        if unknown:
            raise BadInput(
                f"{type(processor).__name__} returns {unknown[0]!r}, which tokenlight does not know. Give "
                "Picture.from_pixels(…).",
                code="processor-output-unknown",
            )
        return _ProcessedPrompt(
            image=build_patch_image(outputs, processor.image_processor, image, name),
            text=recorder.text,
            has_special_tokens=not recorder.adds_special_tokens,
            ids=tuple(map(int, outputs["input_ids"][0])),
        )

    def _locate_prompt(self, layout: PromptLayout, processed: _ProcessedPrompt) -> PromptLayout:
        """Find the parts of the prompt in the processed text; a marker in a part splits it in two."""
        expected = []
        for (start, end), name in layout.parts:
            for piece in layout.text[start:end].split(self.image_marker):
                if piece.strip():
                    expected.append(([piece], name))
        return locate_parts(processed.text, expected, processed.has_special_tokens)

    def _insert_patches(self, row: TokenRow, image: PatchImage) -> TokenRow:
        """Return the row with its patches as the first segment, each named ``row,column``."""
        positions = [i for i, token_id in enumerate(row.ids) if token_id == self.image_token_id]
        if len(positions) != image.rows * image.columns:
            raise BadInput(
                f"The prompt has {len(positions)} image tokens for {image.rows} × {image.columns} "
                "vectors. Use the processor that belongs to this model.",
                code="patch-count",
            )
        pieces = list(row.pieces)
        special_tokens_mask = list(row.special_tokens_mask)
        # The image becomes segment 0, so all others move up by one.
        segments: list[int | None] = []
        for segment in row.segments:
            segments.append(None if segment is None else segment + 1)
        for position, patch_name in zip(positions, image.patch_names, strict=True):
            pieces[position] = patch_name
            special_tokens_mask[position] = False
            segments[position] = 0
        return replace(
            row,
            pieces=tuple(pieces),
            special_tokens_mask=tuple(special_tokens_mask),
            segments=tuple(segments),
            texts=(image.name, *row.texts),
            segment_names=(IMAGE_SEGMENT, *row.segment_names),
            image=replace(image, token_positions=tuple(positions)),
        )


class _RecordingTokenizer:
    """A tokenizer that records the text that a processor passes to it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.text = ""
        self.adds_special_tokens = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, *args: Any, **options: Any) -> Any:
        self.text = text if isinstance(text, str) else text[0]
        self.adds_special_tokens = options.get("add_special_tokens", True)
        runner = find_limited_runner(self._tokenizer)
        if runner is not None:
            runner.try_under_limits([self.text])
        with tokenizer_panics_as_errors("The tokenizer"):
            return self._tokenizer(text, *args, **options)
