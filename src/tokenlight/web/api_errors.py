"""Errors of the API: every one is sent as ``{"error": {"code", "message", "hint"}}``, without file paths."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tokenlight import errors

logger = logging.getLogger("tokenlight.web")

TOO_MANY_REQUESTS = 429
SCHEMA_HINT = "GET /api/openapi.json describes every address and its request."


class ApiError(Exception):
    """An error to send to the client.

    Args:
        message: The request, and why it fails.
        code: A stable name for programs. The codes are part of the API.
        hint: A remedy.
        status: HTTP status of the response.
        headers: Further headers of the response.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        hint: str = "",
        status: int = 422,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.status = status
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, dict[str, str]]:
        """Return the body of the response."""
        # A message may come from a library and name a file; hints are all written here.
        message = strip_paths(self.message)
        return {"error": {"code": self.code, "message": message, "hint": self.hint}}


class ErrorDetail(BaseModel):
    """An error response: a code for programs, a message and a hint for people."""

    code: str
    message: str
    hint: str


class ErrorResponse(BaseModel):
    """The body of every response with status 400 or more."""

    error: ErrorDetail


_STATUS_DESCRIPTIONS = {
    400: "The HTTP request cannot be read.",
    403: "The request comes from another site, or names another host.",
    404: "There is no such model, explanation or file.",
    405: "This address does not accept this HTTP method.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The request is not valid. The message says why, and the hint says what to do.",
    429: "Too many requests are waiting. Retry-After says when to try again.",
    500: "An unexpected error occurred.",
    503: "The server is shutting down.",
    504: "The request took too long.",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": description}
    for status, description in _STATUS_DESCRIPTIONS.items()
}

# Class of an error of the library → code and hint of the API. Subclasses stand before their bases.
_ERROR_CODES: tuple[tuple[type[errors.TokenlightError], str, str], ...] = (
    (
        errors.TextTooLong,
        "text_too_long",
        "Shorten the text. POST /api/explain also accepts long = truncate or long = stride.",
    ),
    (errors.UnknownName, "unknown_name", ""),
    (errors.BadInput, "bad_input", ""),
    (
        errors.BadTarget,
        "bad_target",
        'A classifier takes a label; a language model takes one token, as {"token": " Paris"}.',
    ),
    (
        errors.UnsupportedModel,
        "unsupported",
        "GET /api/methods lists which methods work on which model.",
    ),
    (errors.UnsupportedTokenizer, "unsupported", ""),
    (
        errors.DamagedFile,
        "damaged_file",
        "Open a file that Attribution.save or tokenlight explain --json wrote.",
    ),
    (errors.NotFinite, "not_finite", ""),
    (errors.MissingExtra, "missing_extra", "The operator of this server can install it."),
)
# HTTP status that the framework raises itself → message and code.
_HTTP_ERRORS = {
    404: ("There is nothing at this address.", "not_found"),
    405: ("This address does not accept this HTTP method.", "method_not_allowed"),
}
# A path from the root, a drive or the home folder: at least two names joined by slashes.
_PATH_PATTERN = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+\- ]*[\w.@+\-]){2,}[/\\]?")
# Folders and files that the server was started with; relative ones do not match the pattern.
_hidden_paths: set[str] = set()


def hide_paths(paths: Iterable[str]) -> None:
    """Register folders and files that no response may name."""
    for path in paths:
        if len(path) > 1:
            _hidden_paths.add(path)


def strip_paths(message: str) -> str:
    """Return the message with every path shortened to its last name."""
    # The longest first: a folder may be the beginning of another path.
    for path in sorted(_hidden_paths, key=len, reverse=True):
        message = message.replace(path, _base_name(path))
    return _PATH_PATTERN.sub(lambda match: _base_name(match[0]), message)


def _base_name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def to_api_error(error: BaseException) -> ApiError:
    """Turn any error into an error of the API; unexpected ones are logged, and sent without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, errors.TokenlightError):
        return _convert_library_error(error)
    if isinstance(error, RequestValidationError):
        return _convert_validation_error(error.errors()[0])
    if isinstance(error, HTTPException):
        return _convert_http_error(error)
    logger.error("unexpected %s", type(error).__name__, exc_info=error)
    return ApiError(
        "An unexpected error occurred.",
        code="internal",
        hint="The log of the server has the details.",
        status=500,
    )


def _convert_library_error(error: errors.TokenlightError) -> ApiError:
    for error_class, code, hint in _ERROR_CODES:
        if isinstance(error, error_class):
            return ApiError(str(error), code=code, hint=hint)
    return ApiError(str(error), code="bad_input")


def _convert_http_error(error: HTTPException) -> ApiError:
    """Return the error for an address or a method that does not exist."""
    message, code = _HTTP_ERRORS.get(
        error.status_code, ("The request cannot be read.", "bad_request")
    )
    return ApiError(
        message, code=code, hint=SCHEMA_HINT, status=error.status_code, headers=error.headers
    )


def make_shutting_down_error() -> ApiError:
    """Return the error for requests that a server which is shutting down cannot answer."""
    return ApiError(
        "The server is shutting down.", code="shutting_down", hint="Try again later.", status=503
    )


def make_not_found_error(message: str, hint: str = "") -> ApiError:
    """Return the error for a model, an explanation or a report that does not exist.

    Args:
        message: What does not exist.
        hint: What the client can do.
    """
    return ApiError(message, code="not_found", hint=hint, status=404)


def check_cost_limit(cost: int, max_cost: int, suggestion: str) -> None:
    """Refuse a request that would send more than ``max_cost`` tokens through a model.

    Args:
        cost: Tokens that the request would send.
        max_cost: Tokens that the server allows.
        suggestion: A valid value, for the hint.
    """
    if cost > max_cost:
        raise ApiError(
            f"This request would send about {cost:,} tokens through the model. This server allows "
            f"{max_cost:,}.",
            code="too_costly",
            hint=f"Give {suggestion}.",
        )


def _convert_validation_error(error: Mapping[str, Any]) -> ApiError:
    """Say what is wrong with the shape of a request, without pydantic's own vocabulary.

    Args:
        error: The first of pydantic's errors, with ``type``, ``loc``, ``msg`` and ``ctx``.
    """
    location = tuple(error.get("loc", ()))
    message = _describe_validation(error, location)
    # Only names that the client wrote: pydantic also lists the types that it tried.
    names = [name for name in map(str, location[1:]) if re.fullmatch(r"[a-z_]+|\d+", name)]
    if names and error.get("type") != "json_invalid":
        message = f"{'.'.join(names)}: {message}"
    return ApiError(message, code="invalid", hint=SCHEMA_HINT)


def _describe_validation(error: Mapping[str, Any], location: tuple[Any, ...]) -> str:
    context = error.get("ctx") or {}
    match error.get("type"):
        case "json_invalid":
            return f"The body is not valid JSON: {context.get('error')} (character {location[-1]})."
        case "value_error":  # raised by the validators of requests.py
            return str(context["error"])
        case "extra_forbidden":
            return "There is no such field."
        case "model_attributes_type" | "model_type":
            return 'Give a JSON object, {"name": value}.'
        case "missing" if location == ("body",):
            return "The body is empty. Give a JSON object."
        case _:
            return str(error.get("msg", "Not valid."))
