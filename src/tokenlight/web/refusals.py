"""Refusals: every error as ``{"error": {"code", "message", "hint"}}``, without a path in it."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tokenlight import errors

log = logging.getLogger("tokenlight.web")


@dataclass(eq=False)
class Refusal(Exception):
    """An answer that is an error."""

    code: str
    message: str
    hint: str = ""
    status: int = 422
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, dict[str, str]]:
        """The body of the answer; a hint is ours, never a library's."""
        told = {"code": self.code, "message": without_paths(self.message), "hint": self.hint}
        return {"error": told}


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
    for status, meaning in {
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
    }.items()
}
BUSY = 429
_LONG = "Shorten the text; POST /api/explain also takes long = truncate or long = stride."
_TARGET = 'A classifier takes a label; a language model takes one token, as {"token": " Paris"}.'
_FILE = "Open a file that Attribution.save or tokenlight explain --json wrote."
# The most special class first. The codes are part of the API.
_KNOWN: tuple[tuple[type[errors.TokenlightError], str, str], ...] = (
    (errors.TextTooLong, "text_too_long", _LONG),
    (errors.UnknownName, "unknown_name", ""),
    (errors.BadInput, "bad_input", ""),
    (errors.BadTarget, "bad_target", _TARGET),
    (errors.UnsupportedModel, "unsupported", "GET /api/methods tells what works on which model."),
    (errors.UnsupportedTokenizer, "unsupported", ""),
    (errors.DamagedFile, "damaged_file", _FILE),
    (errors.NotFinite, "not_finite", ""),
    (errors.MissingExtra, "missing_extra", "Whoever runs this server can install it."),
)
# A folder or file from the root, a drive or a home: at least two names joined by slashes.
_PATH = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+\- ]*[\w.@+\-]){2,}[/\\]?")
_secrets: set[str] = set()


def keep_secret(paths: Iterable[str]) -> None:
    """These folders and files are named in no answer."""
    _secrets.update(path for path in paths if len(path) > 1)


def without_paths(message: str) -> str:
    """The message with every path in it cut to its last name."""
    for path in sorted(_secrets, key=len, reverse=True):
        message = message.replace(path, _last_name(path))
    return _PATH.sub(lambda found: _last_name(found[0]), message)


def _last_name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def caught(broken: BaseException) -> Refusal:
    """Any error as a refusal; what is unexpected is logged here and not told."""
    match broken:
        case Refusal():
            return broken
        case errors.TokenlightError():
            known = (told for kind, *told in _KNOWN if isinstance(broken, kind))
            code, hint = next(known, ("bad_input", ""))
            return Refusal(code, str(broken), hint)
        case RequestValidationError():
            return _invalid(broken.errors()[0])
        case HTTPException(status_code=status):
            code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
            hint = "GET /api/openapi.json tells which addresses there are, and what each takes."
            return Refusal(code, f"{code.replace('_', ' ')}.", hint, status, broken.headers or {})
    log.error("unexpected %s", type(broken).__name__, exc_info=broken)
    said = "something unexpected went wrong."
    return Refusal("internal", said, "The server's own log says what.", 500)


def closing() -> Refusal:
    """The server goes down."""
    return Refusal("shutting_down", "the server is shutting down.", "Try again later.", 503)


def not_found(what: str, hint: str = "") -> Refusal:
    """There is no such thing here."""
    return Refusal("not_found", what, hint, 404)


def too_costly(cost: int, most: int, less: str) -> None:
    """Refuse what sends more tokens through a model than are served."""
    if cost > most:
        said = f"this costs about as much as sending {cost:,} tokens through the model"
        raise Refusal("too_costly", f"{said}, and at most {most:,} are served.", f"Give {less}.")


def _invalid(wrong: Mapping[str, Any]) -> Refusal:
    """What is wrong with the shape of a request, without pydantic's own vocabulary."""
    place, why = tuple(wrong.get("loc", ())), wrong.get("ctx") or {}
    # Only what the asker wrote: pydantic also names the kinds of value it tried.
    parts = [part for part in map(str, place[1:]) if re.fullmatch(r"[a-z_]+|\d+", part)]
    match wrong.get("type"):
        case "json_invalid":
            parts = []
            said = f"the body is not valid JSON: {why.get('error')} (character {place[-1]})."
        case "value_error":
            said = str(why["error"])  # ours, without a prefix
        case "extra_forbidden":
            said = "there is no such field."
        case "model_attributes_type" | "model_type":
            said = 'give a JSON object, {"name": value}.'
        case "missing" if place == ("body",):
            said = "the body is empty; give a JSON object."
        case _:
            said = str(wrong.get("msg", "invalid"))
    hint = "GET /api/openapi.json tells what each request takes."
    return Refusal("invalid", ": ".join([".".join(parts), said] if parts else [said]), hint)
