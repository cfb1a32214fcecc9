"""A request's body: JSON of at most so many bytes, as the schema that it must have."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from minitrain.apps.serve.errors import Refused, of_validation
from minitrain.apps.serve.schemas import NOT_HERE
from minitrain.words import memory_text

Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(request: Request, schema: type[Schema], most_bytes: int) -> Schema:
    """A page of another site cannot send application/json unasked, as it can a form."""
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
        raise of_validation(error, NOT_HERE) from None
