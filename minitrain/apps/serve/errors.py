"""Reads request bodies, and writes errors in OpenAI's format.

    {"error": {"message": …, "type": …, "param": …, "code": …}}

400: not JSON, a field that is missing, unknown, of the wrong type, or beyond this model's limits.
401: key. 404: model or address. 413, 415: the body. 429: full. 503: the server shuts down.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from minitrain.apps.serve.schemas import MEMBER, NOT_HERE
from minitrain.words import memory_text

RETRY_SECONDS = 1
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """Refuses a request with `status` and a sentence."""

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


def of_validation(error: ValidationError) -> Refused:
    """The first error, with its field; fields in NOT_HERE may only have neutral values."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return Refused(400, f"the body is not JSON: {first['msg']}")
    if not first["loc"]:
        return Refused(400, "the body is JSON, and must be an object with fields")
    head, *steps = map(str, first["loc"])
    path = [head, *(step for step in steps if not step.startswith(MEMBER))]
    for length, field in enumerate(path, 1):
        if field in NOT_HERE:
            place = ".".join(path[:length])
            return Refused(400, f"{place} is not supported by this server: leave it out", place)
    place = ".".join(path)
    words = {
        "extra_forbidden": "is not a parameter that this server knows: leave it out",
        "missing": "is missing",
    }
    return Refused(400, f"{place} {words.get(first['type'], 'is wrong: ' + first['msg'])}", place)


async def refuse(request: Request, error: Refused) -> Response:
    """Starlette's handler of `Refused`."""
    return error.response


async def refuse_address(request: Request, error: Exception) -> Response:
    """Answers 404 and 405 for an address or a method that is not served."""
    status = getattr(error, "status_code", 404)
    return Refused(status, f"{request.method} {request.url.path} is not served here").response


Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(request: Request, schema: type[Schema], most_bytes: int) -> Schema:
    """Requires application/json, which other sites' pages cannot send cross-origin as they can a
    form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"the body is {kind or 'of no type'}: send application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise Refused(413, f"the body is larger than {memory_text(most_bytes)}: send less")
    try:
        return schema.model_validate_json(bytes(body))
    except ValidationError as error:
        raise of_validation(error) from None
