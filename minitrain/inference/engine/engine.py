"""The engine: add requests at any time, and take their outputs step by step.

    engine = Engine(model, num_blocks=256, decode=tokenizer.decode)
    engine.add(tokenizer.encode("Once upon a time"), SamplingParameters(max_new_tokens=50))
    for output in engine.stream():
        print(output.text, end="", flush=True)

A step: the scheduler plans which requests compute which tokens, the runner computes them all in one
forward pass, the sampler draws, and finished requests make room for waiting ones. An answer depends
on its request's tokens, parameters and adapter, and on nothing else in the batch: the batch's
rounding only changes a draw if two tokens are tied to the last digits (`sampling.draw`).
speculation/serving.py extends it by drafts.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import BlockManager
from minitrain.inference.engine.answer import Answer, Output, draw_answers, failing
from minitrain.inference.engine.request import Request, Times, as_tokens, check_prompt
from minitrain.inference.engine.runner import Adapters, Pass, Runner
from minitrain.inference.engine.scheduler import Plan, Scheduler, Work
from minitrain.inference.parameters import SamplingParameters, as_whole
from minitrain.inference.streaming import Decode, TextStream
from minitrain.model.transformer import Transformer
from minitrain.ranks.group import Group
from minitrain.words import plural

STEPS_KEPT = 10_000  # metrics of the newest steps


def one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """Serializes calls of an engine's method from several threads."""

    @wraps(method)
    def alone(self: Engine, *args: Any, **options: Any) -> Any:
        with self.lock:
            return method(self, *args, **options)

    return alone


@dataclass(frozen=True)
class StepMetrics:
    seconds: float
    requests: int  # in the step's batch
    tokens: int  # computed
    sampled: int  # generated
    drafted: int  # draft tokens among those computed
    kept: int  # accepted draft tokens
    waiting: int
    preemptions: int
    blocks_used: int
    bytes_used: int  # keys and values in used blocks, on this rank
    empty_places: int  # unused positions in used blocks
    hit_rate: float  # share of all admitted tokens that were found in the prefix cache


class Engine:
    """`num_blocks` blocks of `block_size` tokens are allocated at once; at most `budget` tokens a
    step and `max_running` requests at once. `steps` has the newest steps' metrics. `adapters` is an
    AdapterBank of the same model; `group` the ranks of a `tensor_parallel` model, all of which must
    add, step and cancel the same requests."""

    scheduler_class = Scheduler

    def __init__(
        self,
        model: Transformer,
        num_blocks: int,
        block_size: int = 16,
        budget: int = 512,
        max_running: int = 64,
        share_prefixes: bool = True,
        decode: Decode | None = None,
        adapters: Adapters | None = None,
        group: Group | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = Runner(model, num_blocks, block_size, adapters, group)
        self.model, self.config = model, model.config
        blocks = BlockManager(num_blocks, block_size, share_prefixes, model.config.window)
        fit = None if adapters is None else adapters.fits
        self.scheduler = self.scheduler_class(blocks, budget, max_running, fit)
        self.adapters = adapters
        self.decode, self.clock = decode, clock
        self.requests: dict[str, Request] = {}
        self.steps: deque[StepMetrics] = deque(maxlen=STEPS_KEPT)
        self.numbers = itertools.count()  # ids for unnamed requests
        self.unseen = False  # has a new request arrived since the last step?
        self.lock = threading.RLock()  # held by add, cancel and step, from any thread
        self.cancelled: set[str] = set()  # since the last step

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    @one_at_a_time
    def add(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters | None = None,
        adapter: str | None = None,
        id: str | None = None,
        n: int | None = None,
    ) -> str | list[str]:
        """-> its id. InputError for a request that can never be served, before any computation.

        With `n`, the ids of n answers: the prompt is computed once, and its blocks are shared. The
        i-th uses `seed + i`; after `id` the others are called `id-1`, `id-2`, …
        """
        parameters = SamplingParameters() if parameters is None else parameters
        if not isinstance(parameters, SamplingParameters):
            raise InputError(f"parameters are {parameters!r:.40}: give SamplingParameters(...)")
        if n is not None and not (as_whole(n) or 0) > 0:
            raise InputError(f"n is {n!r:.40}; it must be a whole number of answers, 1 or more")
        requests: list[Request] = []
        for number in range(1 if n is None else as_whole(n)):
            own = f"{id}-{number}" if number and id is not None else id
            seed = (parameters.seed + number + 2**63) % 2**64 - 2**63
            one = replace(parameters, seed=seed) if number else parameters
            requests.append(self._request(prompt, one, adapter, own))
            requests[-1].first = requests[0] if number else None
        for request in requests:  # all alike: either the first one raises, or none
            self.scheduler.add(request)
            self.requests[request.id] = request
        self.unseen = True
        return requests[0].id if n is None else [request.id for request in requests]

    @one_at_a_time
    def cancel(self, id: str) -> bool:
        """Ends a request and frees its blocks; False if there is none with this id."""
        if id not in self.requests:
            return False
        self.cancelled.add(id)
        self._end(self.requests[id], "cancelled")
        return True

    @one_at_a_time
    def step(self) -> list[Output]:
        """One forward pass; [] without requests."""
        began = self.clock()
        self.cancelled.clear()
        if not self.busy:
            return []
        if self.runner.begin_anew(closely=self.unseen):
            self.scheduler.restart()
        self.unseen = False
        lost = self._end_without_adapter()
        self._prepare()
        plan = self.scheduler.schedule()
        for work in plan.work:
            if work.request.times.started is None:
                work.request.times.started = began
        read, failed = self._read(plan)
        outputs = [] if read is None else self._answer(plan, read)
        self._measure(plan, [] if read is None else read.sampled, len(outputs), began)
        outputs += failed
        for output in outputs:
            if output.finish_reason is not None:
                self._end(self.requests[output.id], output.finish_reason)
        if any(output.finish_reason == "error" for output in outputs):
            self.scheduler.blocks.forget()  # NaN in them must not be found or read
            self.runner.cache.wipe(self.scheduler.blocks.free)
        return lost + outputs

    def stream(self) -> Iterator[Output]:
        """Yields outputs until no request is left; add and cancel at any time in between."""
        while self.busy:
            for output in self.step():
                if output.id not in self.cancelled:
                    yield output

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters | Sequence[SamplingParameters] | None = None,
        n: int = 1,
    ) -> list[Answer]:
        """All prompts' answers, in the prompts' order; `parameters` are for all, or one per prompt.
        With `n`, each prompt's n answers are adjacent. An answer that ends with an error records
        it; InputError if all do."""
        if self.busy:
            raise InputError(
                f"{plural(len(self.requests), 'request')} are being served, and their outputs "
                "would be lost: take all by stream(), or cancel them"
            )
        if parameters is None or isinstance(parameters, SamplingParameters):
            parameters = [parameters] * len(prompts)
        if len(parameters) != len(prompts):
            raise InputError(
                f"{plural(len(prompts), 'prompt')} and {len(parameters)} parameters: give one for "
                "each prompt, or one for all"
            )
        answers: dict[str, Answer] = {}
        try:
            for prompt, one in zip(prompts, parameters):
                answers |= {id: Answer() for id in self.add(prompt, one, n=n)}
            for output in self.stream():
                answers[output.id].extend(output)
        finally:  # none is left, unless something went wrong
            for id in answers:
                self.cancel(id)
        if answers and all(answer.error for answer in answers.values()):
            raise InputError(next(iter(answers.values())).error)
        return list(answers.values())

    def _request(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        adapter: str | None,
        id: str | None,
    ) -> Request:
        if id is None:
            names = (f"request-{number}" for number in self.numbers)
            id = next(name for name in names if name not in self.requests)
        for name, value in (("id", id), ("adapter", adapter)):
            if not isinstance(value, str | None):
                raise InputError(f"{name} is {value!r:.40}; it must be a string, or None")
        if id in self.requests:
            raise InputError(f"a request is called '{id}' already: give another id, or none")
        prompt = as_tokens(prompt)
        check_prompt(prompt, parameters.max_new_tokens, self.config)
        if parameters.stop and self.decode is None:
            raise InputError("stop strings need text: give the engine `decode`, or stop_tokens")
        text = self._text_after(prompt, parameters.stop)
        times = Times(arrived=self.clock())
        key = self._adapter_key(adapter)
        ends = self.model.end_tokens
        return Request(
            id, tuple(prompt), parameters, times, adapter, key, text=text, model_ends=ends
        )

    def _text_after(self, prompt: list[int], stop: Sequence[str]) -> TextStream | None:
        if self.decode is None:
            return None
        try:
            return TextStream(self.decode, prompt, stop)
        except Exception as error:  # from `decode`, which the caller supplies
            raise InputError(
                f"the prompt could not be decoded ({type(error).__name__}: {error}): give the "
                "`decode` of the tokenizer that encoded it"
            ) from error

    def _adapter_key(self, name: str | None) -> tuple[str, int] | None:
        """Identifies an adapter beyond its name, which may later be given to another one."""
        if name is None:
            return None
        if self.adapters is None:
            raise InputError(f"adapter '{name}' was asked for: give the engine an AdapterBank")
        return name, self.adapters.number(name)

    def _end_without_adapter(self) -> list[Output]:
        """Ends requests whose adapter was removed or replaced in the meantime."""
        outputs = []
        for request in [one for one in self.requests.values() if one.adapter is not None]:
            try:
                same = self._adapter_key(request.adapter) == request.adapter_key
            except InputError:
                same = False
            if not same:
                words = f"adapter '{request.adapter}' was removed while it was in use"
                outputs.append(failing(request, f"{words}: ask again, with one that is there"))
                self._end(request, "error")
        return outputs

    def _read(self, plan: Plan) -> tuple[Pass | None, list[Output]]:
        """Computes a plan. If that fails, runs each request by itself: the plan then keeps those
        that succeed, and the others' outputs carry their errors. If several requests all fail, or
        ranks compute together, raises the error itself: the fault is then the model's."""
        if not plan.work:
            return None, []
        try:
            return self.runner.run(plan), []
        except Exception as error:
            if isinstance(error, InputError) or self.runner.group is not None:
                raise
            read, failed = self.runner.run_apart(plan)
            if read is None and len(failed) > 1:
                raise
        outputs = []
        for id, error in failed.items():
            reason = f"its forward pass failed ({type(error).__name__}: {error})"
            outputs.append(failing(self.requests[id], reason, error))
        plan.work = [work for work in plan.work if work.request.id not in failed]
        return read, outputs

    def _prepare(self) -> None:
        """Hook before a step is planned: speculation makes its drafts here."""

    def _answer(self, plan: Plan, read: Pass) -> list[Output]:
        outputs = draw_answers(read.sampled, read.logits, self.clock())
        for work in plan.work:
            self.scheduler.computed(work)
        return outputs

    def _end(self, request: Request, reason: str) -> None:
        request.times.ended = self.clock()
        self.scheduler.finish(request, reason)
        del self.requests[request.id]

    def _measure(self, plan: Plan, due: Sequence[Work], sampled: int, began: float) -> None:
        blocks, running = self.scheduler.blocks, self.scheduler.running
        tables, size = [request.table for request in running], blocks.block_size
        held = sum(one.num_computed_tokens - one.table.gone * size for one in running)
        self.steps.append(
            StepMetrics(
                seconds=self.clock() - began,
                requests=len(plan.work),
                tokens=plan.num_tokens,
                sampled=sampled,
                drafted=sum(work.samples for work in due) - len(due),
                kept=sampled - len(due),
                waiting=len(self.scheduler.waiting),
                preemptions=len(plan.preempted),
                blocks_used=blocks.used,
                bytes_used=blocks.used * self.runner.cache.page_bytes,
                empty_places=sum(table.held for table in tables) * size - held,
                hit_rate=blocks.hit / max(1, blocks.queried),
            )
        )
