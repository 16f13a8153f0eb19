"""What may be asked: the bodies of the requests, checked for shape and size."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenlight.data.target import Continuation, Contrast, NextToken
from tokenlight.data.tokens import Question
from tokenlight.inputs.prompt import Context
from tokenlight.web.limits import ServerLimits

_LIMITS = ServerLimits()
MOST_EVALUATED = _LIMITS.evaluated_methods
Text = Annotated[str, Field(min_length=1, max_length=_LIMITS.characters)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
ABOUT_DOCUMENTS = (("question", "documents"), ("question", "documents", "answer"))
INPUTS = (("text",), ("text", "pair"), ("question", "context"), ("prompt",), *ABOUT_DOCUMENTS)
BETWEEN = re.compile(r"\n\s*\n")  # documents stands an empty line


class Strict(BaseModel):
    """A field that nobody knows is a mistake, and said."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ContrastAsked(Strict):
    """Why ``for`` rather than ``rather_than``."""

    this: Name | Count = Field(alias="for")
    that: Name | Count = Field(alias="rather_than")


class TokenAsked(Strict):
    """The next token of a language model, as text."""

    token: Name


TargetAsked = Name | Count | ContrastAsked | TokenAsked


class Fields(Strict):
    """What a model may read: nothing yet says which of it must be there."""

    text: Text | None = None
    pair: Text | None = None
    question: Text | None = None
    context: Text | None = None
    prompt: Text | None = None
    documents: Text | None = None  # with an empty line between two
    answer: Text | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """Which of the inputs are there."""
        return tuple(name for name in Fields.model_fields if getattr(self, name) is not None)

    @property
    def inputs(self) -> Any:
        """As explain() takes it."""
        if self.question is not None and self.context is not None:
            return Question(question=self.question, context=self.context)
        if self.documents is not None:
            documents = [one.strip() for one in BETWEEN.split(self.documents) if one.strip()]
            return Context(documents, self.question)
        if self.pair is not None:
            return (self.text, self.pair)
        return self.prompt if self.text is None else self.text


class TextAsked(Fields):
    """A text, a pair, a question about a context or documents (and its answer), or a prompt."""

    @model_validator(mode="after")
    def _one_input(self) -> "TextAsked":
        if self.fields not in INPUTS:
            ways = "text, text and pair, question and context, question and documents (and answer)"
            got = " and ".join(self.fields) or "none of them"
            raise ValueError(f"give {ways}, or prompt; got {got}")
        return self


class ExplainAsked(TextAsked):
    """Explain one text by one method or several."""

    model: Name | None = None
    method: Name | Annotated[list[Name], Field(min_length=1, max_length=_LIMITS.methods)] = "auto"
    target: TargetAsked = "predicted"
    words: bool = False
    layers: bool = False
    trust: bool = False
    long: Literal["error", "truncate", "stride"] = "error"
    seed: Seed = 0

    @property
    def wanted(self) -> Any:
        """The target; of a question about documents the whole answer, which needs no leading blank."""
        if self.documents is None:
            return target_of(self.target)
        given = self.answer and re.sub(r"^(?=\S)", " ", self.answer)
        return Continuation(given, _LIMITS.written, together=True)


class TrustAsked(Strict):
    """Test one explanation that was made here."""

    id: Identity


class PerturbAsked(Fields):
    """The hiding and revealing game of explanations made here, or of a text and an order."""

    ids: Annotated[list[Identity], Field(min_length=1, max_length=_LIMITS.methods)] | None = None
    id: Identity | None = None
    model: Name | None = None
    order: Annotated[list[Count], Field(min_length=1, max_length=4096)] | None = None
    target: TargetAsked = "predicted"
    random_orders: Annotated[int, Field(ge=0, le=_LIMITS.random_orders)] = 8
    seed: Seed = 0

    @model_validator(mode="after")
    def _ids_or_order(self) -> "PerturbAsked":
        if [self.ids, self.id, self.order].count(None) != 2:
            raise ValueError("give ids of explanations, or a text with an order")
        if self.fields not in (INPUTS if self.order else ((),)):
            raise ValueError("a text needs an order, an order a text, and ids need neither")
        return self


class AttentionAsked(TextAsked):
    """What one head of one layer looks at, or (no ``head``) all heads of it in the mean."""

    model: Name | None = None
    layer: Annotated[int, Field(ge=0, le=1000)]
    head: Annotated[int, Field(ge=0, le=1000)] | None = None


class EvaluateAsked(Strict):
    """Measure methods on a few texts."""

    model: Name | None = None
    method: Name | Annotated[list[Name], Field(min_length=1, max_length=MOST_EVALUATED)] = "auto"
    metrics: Annotated[list[Name], Field(min_length=1, max_length=_LIMITS.metrics)] = ["aopc"]
    texts: Annotated[list[Text | TextAsked], Field(min_length=1, max_length=_LIMITS.texts)]
    labels: Annotated[list[Name | Count | None], Field(max_length=_LIMITS.texts)] | None = None
    target: TargetAsked = "predicted"
    seed: Seed = 0

    @model_validator(mode="after")
    def _a_label_a_text(self) -> "EvaluateAsked":
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise ValueError(f"{len(self.labels)} labels for {len(self.texts)} texts")
        return self

    @property
    def asked(self) -> list[TextAsked]:
        """Every text in one form."""
        return [TextAsked(text=one) if isinstance(one, str) else one for one in self.texts]


def target_of(asked: TargetAsked) -> Any:
    """As explain() takes it."""
    if isinstance(asked, ContrastAsked):
        return Contrast(asked.this, asked.that)
    return NextToken(asked.token) if isinstance(asked, TokenAsked) else asked
