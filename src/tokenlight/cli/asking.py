"""From the command line's words to a target."""

from __future__ import annotations

from typing import Any

from tokenlight.errors import BadInput


def asked(
    target: str,
    rather_than: str | None,
    *,
    token: str | None = None,
    continuation: str | None = None,
    generate: int | None = None,
) -> Any:
    """The target that --target, --rather-than, --token, --continue and --generate name together."""
    if continuation is not None or generate is not None:
        return _continued(target, rather_than, token, continuation, generate)
    wanted: Any = target
    if rather_than is not None:
        if target == "all":
            raise BadInput(
                f"--rather-than {rather_than} compares with one label: give --target LABEL, or "
                "leave --target out for the predicted one."
            )
        from tokenlight.target import Contrast

        wanted = Contrast(target, rather_than)
    if token is None:
        return wanted
    from tokenlight.target import TokenTarget

    if not isinstance(wanted, str) or wanted == "all":
        raise BadInput(f"--token {token} goes with one label: --target LABEL, or none of it.")
    return TokenTarget(int(token) if token.isdigit() else token, wanted)


def answer_asked(
    target: str, rather_than: str | None, *, occurrence: int | None, no_answer: bool
) -> Any:
    """The target of a question: the model's own answer, given words of the context, or none."""
    from tokenlight.answers import SpanTarget

    if target == "all":
        raise BadInput(
            "--target all explains every class, but a question is answered with a part of the "
            "context. Leave --target out to explain the model's own answer, or give the words of "
            "an answer as they stand in the context: --target WORDS."
        )
    named = target != "predicted"
    if no_answer and named:
        raise BadInput(f"give either --target {target!r} or --no-answer, not both.")
    if occurrence is not None and not named:
        raise BadInput("--occurrence counts places of an answer; give its words with --target.")
    this = SpanTarget(answer=target if named else None, occurrence=occurrence, no_answer=no_answer)
    if rather_than is None:
        return this
    from tokenlight.target import Contrast

    return Contrast(this, rather_than)


def _continued(
    target: str,
    rather_than: str | None,
    token: str | None,
    continuation: str | None,
    generate: int | None,
) -> Any:
    if continuation is not None and generate is not None:
        raise BadInput("give either --continue (what was written) or --generate N, not both.")
    if target != "predicted" or rather_than is not None or token is not None:
        raise BadInput(
            "--continue and --generate explain the written tokens themselves; leave out --target, "
            "--rather-than and --token."
        )
    from tokenlight.target import Continuation

    return Continuation(continuation) if generate is None else Continuation(None, generate)
