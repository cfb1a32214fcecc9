"""Answers requests, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from minitrain.apps.serve.connection import EventStream, while_connected
from minitrain.apps.serve.errors import Refused
from minitrain.apps.serve.formats import Chat, Completion, Format
from minitrain.apps.serve.language import Language
from minitrain.apps.serve.loop import Answers, EngineLoop, QueueFull, Unavailable
from minitrain.apps.serve.schemas import Asked, AskedChat, AskedCompletion
from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters

NEW_TOKENS = 16  # of a completion, as OpenAI's; a chat's answer may be as long as there is room
CLIENT_GONE = 499  # nobody reads it; nginx's number in the log


@dataclass(frozen=True)
class Completer:
    name: str
    language: Language
    loop: EngineLoop
    adapters: tuple[str, ...] = ()  # each is asked for as a model of its own

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
        """Beside the other connections: a long text takes a while."""
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
        told = form(asked.model, self.language, [prompt for prompt, _ in added], asked.n or 1)
        prompt_tokens = sum(len(prompt) for prompt in prompts)
        if asked.stream:
            events = self._events(answers, told, prompt_tokens, asked.include_usage)
            return EventStream(events, lambda: self.loop.cancel(answers))
        try:
            whole = await while_connected(request.receive, self._whole(answers, told))
        except Unavailable as error:
            raise Refused(503, str(error)) from None
        finally:
            self.loop.cancel(answers)
        if whole is None:
            return Response(status_code=CLIENT_GONE)
        return JSONResponse(told.whole(whole, told.usage(prompt_tokens)))

    async def _add(
        self, added: list[tuple[list[int], SamplingParameters]], adapter: str | None
    ) -> Answers:
        try:
            return await self.loop.add(added, adapter)
        except InputError as error:
            raise Refused(400, str(error)) from None
        except QueueFull as error:
            raise Refused(429, str(error)) from None
        except Unavailable as error:
            raise Refused(503, str(error)) from None

    def _parameters(
        self, asked: Asked, prompt: list[int], default: int | None
    ) -> list[SamplingParameters]:
        """The engine refuses a requested length that does not fit; the default is fitted."""
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
