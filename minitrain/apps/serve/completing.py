"""Answers requests, whole or as a stream of events (SSE), while their client is connected.

A server notices a disconnect only while it listens: work and listening run concurrently, and the
first to finish cancels the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from minitrain.apps.language import Language
from minitrain.apps.serve.errors import Refused
from minitrain.apps.serve.formats import Chat, Completion, Format
from minitrain.apps.serve.loop import Answers, EngineLoop, QueueFull, Unavailable
from minitrain.apps.serve.schemas import Asked, AskedChat, AskedCompletion
from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters

NEW_TOKENS = 16  # OpenAI's default for completions; a chat answer may fill the context
CLIENT_GONE = 499  # nginx's code, for the log


@dataclass(frozen=True)
class Completer:
    name: str
    language: Language
    loop: EngineLoop
    adapters: tuple[str, ...] = ()  # each served under its own model name

    async def complete(self, request: Request, asked: AskedCompletion) -> Response:
        try:
            prompts = [
                await self._encoded(prompt) if isinstance(prompt, str) else prompt
                for prompt in asked.prompts
            ]
        except InputError as error:
            raise Refused(400, str(error), "prompt") from None
        return await self._answer(request, asked, prompts, NEW_TOKENS, Completion)

    async def chat(self, request: Request, asked: AskedChat) -> Response:
        messages = [message.plain for message in asked.messages]
        try:
            prompt = await asyncio.to_thread(self.language.encode_chat, messages)
        except InputError as error:
            raise Refused(400, str(error), "messages") from None
        return await self._answer(request, asked, [prompt], None, Chat)

    def check_served(self, model: str) -> None:
        names = (self.name, *self.adapters)
        if model not in names:
            known = " or ".join(f"'{name}'" for name in names)
            words = f"the model '{model:.80}' is not served here: ask for {known}"
            raise Refused(404, words, "model", "model_not_found")

    async def _encoded(self, text: str) -> list[int]:
        """On a thread, so that a long prompt does not block other connections."""
        return await asyncio.to_thread(self.language.encode, text)

    async def _answer(
        self,
        request: Request,
        asked: Asked,
        prompts: list[list[int]],
        default: int | None,
        form: type[Format],
    ) -> Response:
        self.check_served(asked.model)
        added = [(p, each) for p in prompts for each in self._parameters(asked, p, default)]
        answers = await self._add(added, None if asked.model == self.name else asked.model)
        outputs = form(asked.model, self.language, [prompt for prompt, _ in added], asked.n or 1)
        prompt_tokens = sum(len(prompt) for prompt in prompts)
        if asked.stream:
            events = self._events(answers, outputs, prompt_tokens, asked.include_usage)
            return EventStream(events, lambda: self.loop.cancel(answers))
        try:
            whole = await while_connected(request.receive, self._whole(answers, outputs))
        except Unavailable as error:
            raise Refused(503, str(error)) from None
        finally:
            self.loop.cancel(answers)
        if whole is None:
            return Response(status_code=CLIENT_GONE)
        return JSONResponse(outputs.whole(whole, outputs.usage(prompt_tokens)))

    async def _add(
        self, added: list[tuple[list[int], SamplingParameters]], adapter: str | None
    ) -> Answers:
        try:
            return await self.loop.add(added, adapter)
        except InputError as error:
            raise Refused(400, str(error)) from None
        except (QueueFull, Unavailable) as error:
            raise Refused(error.status, str(error)) from None

    def _parameters(
        self, asked: Asked, prompt: list[int], default: int | None
    ) -> list[SamplingParameters]:
        """A default length is cut to fit; the engine refuses a requested one that does not fit."""
        engine = self.loop.engine
        blocks = engine.scheduler.blocks
        places = min(engine.config.max_length, blocks.num_blocks * blocks.block_size + 1)
        room = max(1, places - len(prompt))
        new_tokens = asked.most or min(default or room, room)
        try:
            parameters = asked.parameters(new_tokens, self.language.ends)
            special = self.language.vocabulary.stop_tokens(parameters[0].stop)
            return [replace(one, stop_tokens=one.stop_tokens + special) for one in parameters]
        except InputError as error:
            raise Refused(400, str(error)) from None

    async def _whole(self, answers: Answers, form: Format) -> list[dict[str, object]]:
        choices: list[list] = [[] for _ in answers.ids]
        async for place, output in answers:
            choice = form.take(place, output)
            if choice is not None:
                choices[place].append(choice)
        return [form.joined(each) for each in choices]

    async def _events(
        self, answers: Answers, form: Format, prompt_tokens: int, usage: bool
    ) -> AsyncIterator[dict[str, object]]:
        for place in range(len(answers.ids)):
            first = form.first(place)
            if first is not None:
                yield form.chunk([first])
        try:
            async for place, output in answers:
                choice = form.take(place, output)
                if choice is not None:
                    yield form.chunk([choice])
        except Unavailable as error:
            yield Refused(503, str(error)).body
            return
        if usage:
            yield form.chunk([], form.usage(prompt_tokens))


T = TypeVar("T")


async def while_connected(receive: Receive, work: Awaitable[T]) -> T | None:
    """The work's result, or None if the client disconnected and the work was cancelled."""
    working, listening = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, listening):
            task.cancel()
        await asyncio.wait({working, listening})


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """`data: {…}` for each of `events`, then `data: [DONE]`, while the client is there.

    `ended` is always called, even if the first event was never sent.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict], ended: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.ended = events, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send))
        finally:
            self.ended()

    async def _send_all(self, send: Send) -> None:
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for event in self.events:
                await send(body(json.dumps(event, ensure_ascii=False), more=True))
            await send(body("[DONE]", more=False))
        except OSError:  # the client disconnected during a send
            return


def body(data: str, more: bool) -> dict[str, object]:
    text = f"data: {data}\n\n"
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}
