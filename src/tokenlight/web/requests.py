"""The bodies of requests, checked for shape and size by pydantic."""

import base64
import binascii
import io
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tokenlight.data.alternatives import DEFAULT_ALTERNATIVES
from tokenlight.data.image import open_image_file
from tokenlight.data.target import Continuation, Contrast, NextToken
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.inputs.picture import BYTES_NAME, IMAGE_FORMATS, Picture
from tokenlight.inputs.prompt import Context
from tokenlight.web.limits import ServerLimits

_LIMITS = ServerLimits()
MAX_EVALUATED_METHODS = _LIMITS.evaluated_methods
BoundedText = Annotated[str, Field(min_length=1, max_length=_LIMITS.characters)]
EncodedPicture = Annotated[str, Field(min_length=1)]  # the bytes of an image file, in base64
BoundedName = Annotated[str, Field(min_length=1, max_length=200)]
AttributionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
NonNegativeInt = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
MethodNames = Annotated[list[BoundedName], Field(min_length=1, max_length=_LIMITS.methods)]
EvaluatedMethodNames = Annotated[
    list[BoundedName], Field(min_length=1, max_length=MAX_EVALUATED_METHODS)
]
MetricNames = Annotated[list[BoundedName], Field(min_length=1, max_length=_LIMITS.metrics)]
Labels = Annotated[list[BoundedName | NonNegativeInt | None], Field(max_length=_LIMITS.texts)]
AttributionIds = Annotated[list[AttributionId], Field(min_length=1, max_length=_LIMITS.methods)]
TokenOrder = Annotated[list[NonNegativeInt], Field(min_length=1, max_length=4096)]
AlternativeCount = Annotated[int, Field(ge=1, le=1000)]
AlternativeTokens = Annotated[
    list[BoundedName | NonNegativeInt], Field(min_length=1, max_length=100)
]
LayerOrHead = Annotated[int, Field(ge=0, le=1000)]

PICTURE_INPUTS = (("picture",), ("picture", "prompt"))
DOCUMENT_INPUTS = (("question", "documents"), ("question", "documents", "answer"))
# The fields that together are one input.
INPUT_COMBINATIONS = (
    ("text",),
    ("text", "pair"),
    ("question", "context"),
    ("prompt",),
    *PICTURE_INPUTS,
    *DOCUMENT_INPUTS,
)
DOCUMENT_SEPARATOR = re.compile(r"\n\s*\n")  # an empty line


class StrictModel(BaseModel):
    """A body in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ContrastBody(StrictModel):
    """A target: why ``for`` rather than ``rather_than``."""

    this: BoundedName | NonNegativeInt = Field(alias="for")
    that: BoundedName | NonNegativeInt = Field(alias="rather_than")


class NextTokenBody(StrictModel):
    """A target: the next token of a language model, as text, and what it is contrasted with."""

    token: BoundedName
    against: AlternativeCount | Literal["all"] | AlternativeTokens | None = DEFAULT_ALTERNATIVES


class GenerateBody(StrictModel):
    """A target: each of the next tokens that a language model writes."""

    generate: Annotated[int, Field(ge=1, le=_LIMITS.answer_tokens)]


TargetBody = BoundedName | NonNegativeInt | ContrastBody | NextTokenBody | GenerateBody


class InputFields(StrictModel):
    """All fields that an input may have; subclasses check which of them belong together."""

    text: BoundedText | None = None
    pair: BoundedText | None = None
    question: BoundedText | None = None
    context: BoundedText | None = None
    picture: EncodedPicture | None = None
    prompt: BoundedText | None = None
    documents: BoundedText | None = None  # separated by empty lines
    answer: BoundedText | None = None

    @field_validator("picture")
    @classmethod
    def _check_picture(cls, picture: str | None) -> str | None:
        """Check size and type by the header of the file; the worker decodes its pixels."""
        if picture is None:
            return picture
        content = decode_picture(picture)
        if len(content) > _LIMITS.picture_bytes:
            raise ValueError(
                f"The picture has {len(content):,} bytes, and this server reads {_LIMITS.picture_bytes:,}. "
                "Give a smaller one."
            )
        try:
            with open_image_file(
                BYTES_NAME, io.BytesIO(content), IMAGE_FORMATS, BadInput, _LIMITS.picture_pixels
            ):
                return picture
        except BadInput as error:
            if error.code == "image-too-large":
                raise ValueError(str(error)) from None
            raise ValueError(
                f"The file is not a picture that can be read. Give one of {', '.join(IMAGE_FORMATS)}."
            ) from None
        except MissingExtra as error:
            raise ValueError(str(error)) from None

    @property
    def present_fields(self) -> tuple[str, ...]:
        """Names of the input fields that the request has."""
        return tuple(name for name in InputFields.model_fields if getattr(self, name) is not None)

    @property
    def explain_input(self) -> Any:
        """The input as ``explain()`` takes it."""
        if self.question is not None and self.context is not None:
            return Question(question=self.question, context=self.context)
        if self.documents is not None:
            documents = [part.strip() for part in DOCUMENT_SEPARATOR.split(self.documents)]
            return Context([document for document in documents if document], self.question)
        if self.picture is not None:
            return Picture(decode_picture(self.picture), text=self.prompt)
        if self.pair is not None:
            return (self.text, self.pair)
        if self.text is not None:
            return self.text
        return self.prompt


class InputBody(InputFields):
    """A text, a pair, a question about a context or documents (and its answer), a prompt or a picture."""

    @model_validator(mode="after")
    def _check_single_input(self) -> "InputBody":
        if self.present_fields not in INPUT_COMBINATIONS:
            present_names = " and ".join(self.present_fields) or "none of them"
            raise ValueError(
                "Give text, text and pair, question and context, question and documents (and answer), "
                f"prompt, picture, or picture and prompt. This request has {present_names}."
            )
        return self


class ExplainBody(InputBody):
    """Explain one text by one or several methods."""

    model: BoundedName | None = None
    method: BoundedName | MethodNames = "auto"
    target: TargetBody = "predicted"
    words: bool = False
    layers: bool = False
    trust: bool = False
    long: Literal["error", "truncate", "stride"] = "error"
    seed: Seed = 0

    @property
    def explain_target(self) -> Any:
        """The target as ``explain()`` takes it; for a question about documents, the whole answer."""
        if self.documents is None:
            return parse_target(self.target)
        answer = self.answer
        if answer is not None:
            # The answer continues the prompt, so it starts with a space.
            answer = re.sub(r"^(?=\S)", " ", answer)
        return Continuation(answer, _LIMITS.answer_tokens, joint=True)


class TextsBody(StrictModel):
    """Explain a list of texts into one report."""

    model: BoundedName | None = None
    method: BoundedName | EvaluatedMethodNames = "auto"
    texts: Annotated[list[BoundedText], Field(min_length=1, max_length=_LIMITS.report_texts)]
    labels: Annotated[list[BoundedName | None], Field(max_length=_LIMITS.report_texts)] | None = (
        None
    )
    trust: bool = False
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_label_count(self) -> "TextsBody":
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise ValueError(
                f"There are {len(self.labels)} labels for {len(self.texts)} texts. Give one label per text."
            )
        return self


class TrustBody(StrictModel):
    """Test one explanation of this server."""

    id: AttributionId


class GameBody(InputFields):
    """The masking game of explanations of this server, or of a text and an order."""

    ids: AttributionIds | None = None
    id: AttributionId | None = None
    model: BoundedName | None = None
    order: TokenOrder | None = None
    target: TargetBody = "predicted"
    random_orders: Annotated[int, Field(ge=0, le=_LIMITS.random_orders)] = 8
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_ids_or_order(self) -> "GameBody":
        if [self.ids, self.id, self.order].count(None) != 2:
            raise ValueError("Give ids of explanations, or a text with an order.")
        if self.order is None:
            if self.present_fields:
                raise ValueError("A text needs an order. With ids, give no text.")
            return self
        if self.present_fields not in INPUT_COMBINATIONS:
            raise ValueError("An order needs a text.")
        if self.target == "all":
            raise ValueError("A game watches one target. Give one instead of all.")
        return self

    @property
    def attribution_ids(self) -> list[str]:
        """The ids without duplicates."""
        return list(dict.fromkeys(self.ids or [str(self.id)]))


class AttentionBody(InputBody):
    """The attention map of one head of a layer, or (without ``head``) the mean over its heads."""

    model: BoundedName | None = None
    layer: LayerOrHead
    head: LayerOrHead | None = None


class EvaluateBody(StrictModel):
    """Measure methods on a few texts of one kind."""

    model: BoundedName | None = None
    method: BoundedName | EvaluatedMethodNames = "auto"
    metrics: MetricNames = ["aopc"]
    texts: Annotated[list[BoundedText | InputBody], Field(min_length=1, max_length=_LIMITS.texts)]
    labels: Labels | None = None
    target: TargetBody = "predicted"
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_label_count(self) -> "EvaluateBody":
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise ValueError(
                f"There are {len(self.labels)} labels for {len(self.texts)} texts. Give one label per text."
            )
        return self

    @model_validator(mode="after")
    def _check_same_fields(self) -> "EvaluateBody":
        field_combinations = {body.present_fields for body in self.input_bodies}
        if len(field_combinations) > 1:
            raise ValueError("Give texts of one kind: all texts, all pairs or all questions.")
        return self

    @property
    def input_bodies(self) -> list[InputBody]:
        """Every text as an :class:`InputBody`."""
        return [InputBody(text=text) if isinstance(text, str) else text for text in self.texts]

    @property
    def present_fields(self) -> tuple[str, ...]:
        """Names of the input fields that the texts have."""
        return self.input_bodies[0].present_fields


def decode_picture(picture: str) -> bytes:
    """Return the bytes of an image file in base64; an address that begins with ``data:`` may be before it.

    Raises:
        ValueError: It is not base64.
    """
    encoded = picture.partition(",")[2] if picture.startswith("data:") else picture
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"The picture is not base64: {error}.") from None


def parse_target(target: TargetBody) -> Any:
    """Return a target as ``explain()`` takes it."""
    if isinstance(target, ContrastBody):
        return Contrast(target.this, target.that)
    if isinstance(target, NextTokenBody):
        return NextToken(target.token, target.against)
    if isinstance(target, GenerateBody):
        return Continuation(None, target.generate)
    return target
