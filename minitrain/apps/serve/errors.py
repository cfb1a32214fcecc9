"""Errors in the body that OpenAI's clients read.

    {"error": {"message": …, "type": …, "param": …, "code": …}}

400: not JSON, a field that is missing, unknown or of another type, or what this model cannot do.
401: key. 404: model or address. 413, 415: the body. 429: full. 503: the server ends.
"""

from __future__ import annotations

from collections.abc import Container

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

RETRY_SECONDS = 1
MEMBER = "<"  # begins the name of a union's member, which is no part of a field's path
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """A request that is answered with `status` and a sentence."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, object]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message,
            "type": TYPES.get(self.status, kind),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    @property
    def response(self) -> JSONResponse:
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in (429, 503) else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def of_validation(error: ValidationError, not_here: Container[str] = ()) -> Refused:
    """The first thing that is wrong, by its field; `not_here`: fields of OpenAI's that may be given
    with the value that changes nothing, and with no other."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return Refused(400, f"the body is not JSON: {first['msg']}")
    if not first["loc"]:
        return Refused(400, "the body is JSON, and must be an object with fields")
    head, *steps = map(str, first["loc"])
    path = [head, *(step for step in steps if not step.startswith(MEMBER))]
    for length, field in enumerate(path, 1):
        if field in not_here:
            place = ".".join(path[:length])
            return Refused(400, f"{place} is not supported by this server: leave it out", place)
    place = ".".join(path)
    words = {
        "extra_forbidden": "is not a parameter that this server knows: leave it out",
        "missing": "is missing",
    }
    return Refused(400, f"{place} {words.get(first['type'], 'is wrong: ' + first['msg'])}", place)


async def refuse(request: Request, error: Refused) -> Response:
    """As starlette calls it."""
    return error.response


async def refuse_address(request: Request, error: Exception) -> Response:
    """Answers 404 and 405 for an address or a method that is not served."""
    status = getattr(error, "status_code", 404)
    return Refused(status, f"{request.method} {request.url.path} is not served here").response
