"""What is answered, for the schema: a description and a JSON type for each address."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

ERROR_STATUSES = {
    400: "no HTTP request that can be read",
    403: "asked by another site, or by a name this server does not go by",
    404: "no such model, explanation or file",
    405: "this address does not take this method",
    413: "the body is too large",
    415: "the body is not JSON",
    422: "what was asked cannot be; the message says why and the hint what to do",
    429: "too many requests wait; Retry-After says when to try again",
    500: "something unexpected went wrong",
    503: "the server is shutting down",
    504: "it took too long",
}


class ErrorDetail(BaseModel):
    """What went wrong: a code for programs, a message and a hint for people."""

    code: str
    message: str
    hint: str


class ErrorAnswer(BaseModel):
    """The body of every answer with status 400 or more."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": meaning}
    for status, meaning in ERROR_STATUSES.items()
}
_OBJECTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "health": ("alive", ("status", "version", "models")),
    "models": ("the served models", ("models", "limits", "opened")),
    "methods": ("methods and metrics", ("methods", "metrics", "groups")),
    "heads": ("the head map of a model", ("model", "layers", "heads", "syntactic", "positional")),
    "explanation": (
        "attributions with ids",
        ("model", "prediction", "attributions", "agreement", "untested", "refused", "seconds"),
    ),
    "trust": ("verdict, grade and health", ("id", "trust")),
    "games": ("curves of the game", ("model", "labels", "games")),
    "attention": ("the map of a head", ("model", "layer", "head", "tokens", "special", "weights")),
    "evaluation": (
        "numbers with 95 % intervals",
        ("model", "methods", "curves", "agreement", "metrics", "rows", "refused", "table"),
    ),
    "opened": ("the attributions with ids", ("attributions", "agreement", "served")),
    "shelf": ("what the server was started with", ("attributions", "benchmarks")),
}
_FILES = {
    "attribution": (
        "the file asked for",
        ("application/json", "text/html", "image/svg+xml", "image/png"),
    ),
    "report": ("the report", ("text/html",)),
}


def answers(kind: str) -> dict[int | str, dict[str, Any]]:
    """The good answer of an address, for the schema."""
    if kind in _FILES:
        meaning, types = _FILES[kind]
        return {200: {"description": meaning, "content": {one: {} for one in types}}}
    meaning, needed = _OBJECTS[kind]
    schema = {"type": "object", "required": list(needed)}
    return {200: {"description": meaning, "content": {"application/json": {"schema": schema}}}}
