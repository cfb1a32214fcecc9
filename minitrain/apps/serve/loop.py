"""Runs the engine on its own thread, and hands its outputs to asyncio.

    asyncio   ──call(f)──▶ inbox ─┐                       ┌─▶ answer's queue ──▶ client
                                  ▼                       │
    thread     … step │ f() f() │ step ── outputs, one call a step ──┘ …

The engine knows nothing of threads: all calls to it run on its thread, between two steps. A forward
pass never blocks the connections, and connections wait for one step at most.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from minitrain.apps.serve.metrics import Metrics
from minitrain.errors import InputError
from minitrain.inference.engine.answer import Output
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters

T = TypeVar("T")


class Unavailable(Exception):
    """A request cannot be served or completed, for a reason on the server's side."""

    status = 503


class QueueFull(Exception):
    """The limit of requests in flight is reached."""

    status = 429


class Answers:
    """The outputs of requests that were added together: (number of the request, output)."""

    def __init__(self, ids: Sequence[str], loop: asyncio.AbstractEventLoop) -> None:
        self.ids, self.loop = list(ids), loop
        self.places = {id: place for place, id in enumerate(ids)}
        self.open = set(ids)
        self.queue: asyncio.Queue[Output | Unavailable] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Output]]:
        """Ends with the last answer; Unavailable if the server stops first."""
        while self.open:
            output = await self.queue.get()
            if isinstance(output, Unavailable):
                raise output
            if output.finish_reason is not None:
                self.open.discard(output.id)
            yield self.places[output.id], output


class EngineLoop:
    """Owns the engine from `start` to `stop`, with at most `max_requests` in flight."""

    def __init__(self, engine: Engine, metrics: Metrics, max_requests: int = 256) -> None:
        self.engine, self.metrics, self.max_requests = engine, metrics, max_requests
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.answers: dict[str, Answers] = {}  # by request; used only on the engine's thread
        self.ended: Unavailable | None = None  # why new requests are refused
        self.deadline: float | None = None  # when unfinished requests are refused
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Fails all requests; returns when the thread has ended."""
        self.drain(0.0)
        self._post(lambda: setattr(self, "stopping", True))
        self.thread.join()

    def drain(self, seconds: float) -> None:
        """Refuses new requests and gives those in flight `seconds`. Safe in a signal handler."""
        until = time.monotonic() + seconds
        self._post(lambda: self._drain(until))

    async def add(
        self,
        prompts: Sequence[tuple[Sequence[int], SamplingParameters]],
        adapter: str | None = None,
    ) -> Answers:
        """Adds all of them or none. InputError, QueueFull, Unavailable."""
        loop = asyncio.get_running_loop()
        added = asyncio.ensure_future(self.call(lambda: self._add(prompts, adapter, loop)))
        try:
            return await asyncio.shield(added)
        except asyncio.CancelledError:  # the client disconnected during a step
            added.add_done_callback(self._nobody_waits)
            raise

    def cancel(self, answers: Answers) -> None:
        """Cancels unfinished requests; their blocks are free before the next step."""
        if answers.open:
            self._post(lambda: self._cancel(answers))

    async def call(self, function: Callable[[], T]) -> T:
        """Calls `function` on the engine's thread between two steps."""
        if not self.thread.is_alive():
            raise self.ended or Unavailable("the engine has ended")
        done: Future[T] = Future()
        self._post(lambda: answer(done, function))
        return await asyncio.wrap_future(done)

    # --- on the engine's thread ---

    def _run(self) -> None:
        while not self.stopping:
            self._read_inbox()
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self._end_all(Unavailable("the server is shutting down"))
            if self.engine.busy:
                self._step()
        self._read_inbox()

    def _read_inbox(self) -> None:
        """Runs all waiting calls; an idle engine waits for one."""
        try:
            if not (self.engine.busy or self.stopping):
                self.inbox.get()()
            while True:
                self.inbox.get_nowait()()
        except Empty:
            return

    def _step(self) -> None:
        try:
            outputs = self.engine.step()
        except Exception as error:  # no client may hang; /health has the reason
            logging.getLogger("minitrain").exception("the engine failed")
            self.ended = Unavailable(f"the engine failed: {type(error).__name__}: {error}")
            self._end_all(self.ended)
            return
        self.metrics.count_step(self.engine, outputs)
        news: dict[Answers, list[Output | Unavailable]] = {}
        for output in outputs:
            whole = output if output.error is None else Unavailable(output.error)
            news.setdefault(self.answers[output.id], []).append(whole)
            if output.finish_reason is not None:
                del self.answers[output.id]
        for answers, own in news.items():
            deliver(answers, own)

    def _add(
        self,
        prompts: Sequence[tuple[Sequence[int], SamplingParameters]],
        adapter: str | None,
        loop: asyncio.AbstractEventLoop,
    ) -> Answers:
        if self.ended is not None:
            raise self.ended
        here = len(self.engine.requests)
        if len(prompts) > self.max_requests:
            raise InputError(
                f"{len(prompts)} answers are requested at once and {self.max_requests} are "
                "allowed: send several requests"
            )
        if here + len(prompts) > self.max_requests:
            raise QueueFull(
                f"server full: {here} of {self.max_requests} requests in flight; retry later"
            )
        ids: list[str] = []
        try:
            for prompt, parameters in prompts:
                ids.append(self.engine.add(prompt, parameters, adapter))
        except InputError:
            for id in ids:
                self.engine.cancel(id)
            raise
        answers = Answers(ids, loop)
        self.answers |= dict.fromkeys(ids, answers)
        for prompt, _ in prompts:
            self.metrics.prompt_tokens.inc(len(prompt))
        return answers

    def _cancel(self, answers: Answers) -> None:
        for id in answers.ids:
            if self.answers.pop(id, None) is not None:
                self.engine.cancel(id)
                self.metrics.ended.labels("abort").inc()
        self.metrics.look(self.engine)

    def _nobody_waits(self, added: asyncio.Future[Answers]) -> None:
        if not added.cancelled() and added.exception() is None:
            self.cancel(added.result())

    def _drain(self, until: float) -> None:
        self.ended = self.ended or Unavailable("the server is shutting down")
        self.deadline = until if self.deadline is None else min(until, self.deadline)
        timer = threading.Timer(max(0.0, until - time.monotonic()), self.inbox.put, [lambda: None])
        timer.daemon = True  # wakes a thread blocked on its inbox
        timer.start()

    def _end_all(self, reason: Unavailable) -> None:
        for answers in dict.fromkeys(self.answers.values()):
            deliver(answers, [reason])
            self._cancel(answers)

    def _post(self, function: Callable[[], None]) -> None:
        self.inbox.put(function)


def answer(done: Future[T], function: Callable[[], T]) -> None:
    """Calls `function` and passes its result or error to the waiting caller."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function())
    except Exception as error:
        done.set_exception(error)


def deliver(answers: Answers, outputs: Sequence[Any]) -> None:
    def put() -> None:
        for each in outputs:
            answers.queue.put_nowait(each)

    try:
        answers.loop.call_soon_threadsafe(put)
    except RuntimeError:  # the asyncio loop is closed
        return
