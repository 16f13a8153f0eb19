"""From the command line's words to a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenlight.errors import BadInput


@dataclass(frozen=True, slots=True)
class Wish:
    """What --target, --rather-than and the options beside them say together."""

    target: str
    rather_than: str | None = None
    occurrence: int | None = None
    no_answer: bool = False
    token: str | None = None
    continuation: str | None = None
    generate: int | None = None

    @property
    def of_a_token(self) -> dict[str, object]:
        """The options given that ask for one token of a text, or for tokens written after it."""
        options = {"token": self.token, "continue": self.continuation, "generate": self.generate}
        return {f"--{name}": value for name, value in options.items() if value is not None}


def asked(wish: Wish) -> Any:
    """The target of a text, an image or a chat."""
    if wish.no_answer:
        raise BadInput("--no-answer explains a question's; give --question and --context with it.")
    if wish.occurrence is not None and wish.token is None:
        raise BadInput(
            f"--occurrence {wish.occurrence} counts places of a word or of an answer; give --token "
            "WORD, or --question and --context with the words of the answer as --target."
        )
    if wish.continuation is not None or wish.generate is not None:
        return _continued(wish)
    wanted: Any = wish.target
    if wish.rather_than is not None:
        if wish.target == "all":
            raise BadInput(
                f"--rather-than {wish.rather_than} compares with one label: give --target LABEL, or "
                "leave --target out for the predicted one."
            )
        from tokenlight.data.target import Contrast

        wanted = Contrast(wish.target, wish.rather_than)
    return wanted if wish.token is None else _token(wish.token, wanted, wish.occurrence)


def answer_asked(wish: Wish) -> Any:
    """The target of a question: the model's own answer, given words of the context, or none."""
    from tokenlight.data.answers import SpanTarget

    for option, value in wish.of_a_token.items():
        raise BadInput(
            f"{option} {value} does not go with a question, which is answered with a part of the "
            "context. Leave it out; to explain an answer of your own give --target WORDS."
        )
    if wish.target == "all":
        raise BadInput(
            "--target all explains every class, but a question is answered with a part of the "
            "context. Leave --target out to explain the model's own answer, or give the words of "
            "an answer as they stand in the context: --target WORDS."
        )
    named = wish.target != "predicted"
    if wish.no_answer and named:
        raise BadInput(f"give either --target {wish.target!r} or --no-answer, not both.")
    if wish.occurrence is not None and not named:
        raise BadInput("--occurrence counts places of an answer; give its words with --target.")
    answer = wish.target if named else None
    this = SpanTarget(answer=answer, occurrence=wish.occurrence, no_answer=wish.no_answer)
    if wish.rather_than is None:
        return this
    from tokenlight.data.target import Contrast

    return Contrast(this, wish.rather_than)


def _token(token: str, label: Any, occurrence: int | None) -> Any:
    from tokenlight.data.target import TokenTarget

    if not isinstance(label, str) or label == "all":
        raise BadInput(
            f"--token {token} goes with one label: leave out --rather-than and --target all, or "
            "give --target LABEL."
        )
    if token.isdigit() and occurrence is not None:
        raise BadInput(
            f"--occurrence {occurrence} counts equal words, but --token {token} is the number of "
            "one token; leave --occurrence out."
        )
    return TokenTarget(int(token) if token.isdigit() else token, label, occurrence)


def _continued(wish: Wish) -> Any:
    if wish.continuation is not None and wish.generate is not None:
        raise BadInput("give either --continue (what was written) or --generate N, not both.")
    if wish.target != "predicted" or wish.rather_than is not None or wish.token is not None:
        raise BadInput(
            "--continue and --generate explain the written tokens themselves; leave out --target, "
            "--rather-than and --token."
        )
    from tokenlight.data.target import Continuation

    if wish.generate is None:
        return Continuation(wish.continuation)
    return Continuation(None, wish.generate)
