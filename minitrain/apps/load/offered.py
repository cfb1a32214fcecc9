"""Sends each request at its scheduled time to a server with OpenAI's API, and times the answer.

Prompts are lists of tokens, so that their lengths are exact and tokenizing is not measured. Answers
are streamed, each piece timed when it arrives. Latencies count from when a request *should* have
been sent: a client that falls behind reports it (`Told.late`). Works with any server that has
/v1/completions; ours and vLLM support `ignore_eos`, which makes answers exactly as long as
requested.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from minitrain.errors import InputError
from minitrain.inference.engine.request import Times
from minitrain.inference.load import Ask
from minitrain.inference.load import Outcome as Told
from minitrain.words import printable

T = TypeVar("T")
SHOWN = 300  # characters of a server's error


def waited_for(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; run on a new thread if this one has an event loop, as in a
    notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Broken(Exception):
    """An incomplete answer, with the reason."""


@dataclass(frozen=True)
class Server:
    """`url` with or without its /v1."""

    url: str
    model: str | None = None  # None: the server's first
    api_key: str | None = None
    ignore_eos: bool = True
    timeout: float = 600.0  # of silence, in seconds

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    def client(self) -> httpx.AsyncClient:
        """A client without a connection limit, which would be a hidden queue."""
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(
            base_url=self.base, headers=headers, limits=limits, timeout=self.timeout
        )

    def body(self, ask: Ask) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": list(ask.prompt),
            "max_tokens": ask.new_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }


async def served_model(server: Server) -> str:
    """The server's first model; InputError if no such server answers."""
    try:
        async with server.client() as client:
            response = await client.get("/v1/models", timeout=min(server.timeout, 10.0))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(
            f"no server answers at {server.base} ({reason(error)}): start one, python -m minitrain "
            "serve --model stories15M, or give its address with --url"
        ) from None
    if response.status_code != 200:
        raise InputError(f"{server.base} answers {refusal(response.status_code, response.text)}")
    try:
        return response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise InputError(
            f"{server.base}/v1/models names no model: is it a server with OpenAI's interface?"
        ) from None


async def offer(
    server: Server, asks: Sequence[Ask], ended: Callable[[Told], None] = lambda result: None
) -> list[Told]:
    """The result of each request, in their order; `ended` is called with each as it finishes."""
    start = time.perf_counter()
    async with server.client() as client:

        async def one(ask: Ask) -> Told:
            await asyncio.sleep(max(0.0, start + ask.at - time.perf_counter()))
            result = await asked(client, server, ask, start + ask.at)
            ended(result)
            return result

        return list(await asyncio.gather(*map(one, asks)))


async def asked(client: httpx.AsyncClient, server: Server, ask: Ask, due: float) -> Told:
    """One request, streamed to its end; any error becomes its `failed`."""
    times, late = Times(due, started=due), time.perf_counter() - due
    prompt_tokens, new_tokens, failed = len(ask.prompt), 0, None
    try:
        async with client.stream("POST", "/v1/completions", json=server.body(ask)) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                raise Broken(refusal(response.status_code, text))
            async for at, chunk in chunks(response):
                usage = chunk.get("usage") or {}
                prompt_tokens = usage.get("prompt_tokens", prompt_tokens)
                new_tokens = usage.get("completion_tokens", new_tokens)
                if brings_text(chunk):
                    times.tokens.append(at)
    except Broken as error:
        failed = str(error)
    except httpx.HTTPError as error:
        failed = reason(error)
    times.ended = time.perf_counter()
    return Told(times, prompt_tokens, max(new_tokens, len(times.tokens)), failed, late)


async def chunks(response: httpx.Response) -> AsyncIterator[tuple[float, dict]]:
    """(time, event) of a stream; Broken if it ends before its [DONE]."""
    async for line in response.aiter_lines():
        at = time.perf_counter()
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise Broken(f"sent what is not JSON: {printable(data, SHOWN)}") from None
        if "error" in chunk:
            raise Broken(refusal(200, data))
        yield at, chunk
    raise Broken("the stream broke off")


def brings_text(chunk: dict) -> bool:
    """True unless the chunk holds only the finish reason or the usage."""
    choices = chunk.get("choices") or []
    return any(one.get("text") or not one.get("finish_reason") for one in choices)


def refusal(status: int, text: str) -> str:
    """The status with the server's own sentence, if its body is OpenAI's."""
    try:
        error = json.loads(text)["error"]
        text = error if isinstance(error, str) else error["message"]
    except (ValueError, LookupError, TypeError):
        text = text or "nothing more"
    return f"{status}: {printable(str(text), SHOWN)}"


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
