"""The engine: add requests at any time, and take what they are told, step by step.

    engine = Engine(model, num_blocks=256, decode=tokenizer.decode)
    engine.add(tokenizer.encode("Once upon a time"), SamplingParameters(max_new_tokens=50))
    for output in engine.stream():
        print(output.text, end="", flush=True)

A step: the scheduler says who computes which tokens, the runner computes all of them in one
forward pass, the sampler draws, and who has ended makes room for who waits. What a request is told
depends on its tokens, parameters and adapter, and on nobody else in the batch: its rounding
moves a draw only where two tokens are equal to the last digits (`logits.draw`).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import BlockManager
from minitrain.inference.engine.answer import Answer, Kept, Output, draw_answers
from minitrain.inference.engine.metrics import StepMetrics
from minitrain.inference.engine.prompt import as_tokens, check_readable
from minitrain.inference.engine.request import Request, Times
from minitrain.inference.engine.runner import Adapters, Pass, Runner
from minitrain.inference.engine.scheduler import Plan, Scheduler
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.proposer import Draft, check_drafts
from minitrain.inference.streaming import Decode, TextStream
from minitrain.model.transformer import Transformer
from minitrain.ranks.group import Group
from minitrain.words import plural

STEPS_KEPT = 10_000  # the newest steps' metrics


class Proposer(Protocol):
    """Who guesses tokens ahead (speculative decoding): all guesses are verified in one pass.

    `speculation.serving.EngineDrafts` makes one of any draft that the package has."""

    def propose(self, requests: Sequence[Request], most: Sequence[int]) -> Sequence[Draft]:
        """For each, a chain or a tree of up to so many tokens that may follow `request.tokens`;
        none is a fine guess too. All are asked at once, so that a draft model reads its weights
        once."""

    def read(self, request: Request, start: int, hidden: Tensor) -> None:
        """The model has read `request.tokens` from `start` on, and these are the vectors (n, D)
        that its head was given at them."""

    def forget(self, id: str) -> None:
        """The request has ended."""


class Engine:
    """`num_blocks` blocks of `block_size` tokens are taken at once; `budget` tokens a step at most,
    `max_running` requests at once. `steps` has the newest steps' metrics. `adapters` is an
    AdapterBank of the same model; `group` the ranks that `tensor_parallel` cut it over, each of
    which adds, steps and cancels the same."""

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
        proposer: Proposer | None = None,
        group: Group | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = model.config
        self.runner = Runner(model, num_blocks, block_size, adapters, group)
        blocks = BlockManager(num_blocks, block_size, share_prefixes, model.config.window)
        fit = None if adapters is None else adapters.fits
        self.scheduler = Scheduler(blocks, budget, max_running, fit)
        self.adapters = adapters
        self.decode, self.proposer, self.clock = decode, proposer, clock
        self.requests: dict[str, Request] = {}
        self.steps: deque[StepMetrics] = deque(maxlen=STEPS_KEPT)
        self.added = 0
        self.cancelled: set[str] = set()  # since the last step

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def add(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters | None = None,
        adapter: str | None = None,
        id: str | None = None,
    ) -> str:
        """-> its id. InputError for what can never be served, before anything is computed."""
        request = self._request(prompt, parameters or SamplingParameters(), adapter, id)
        self.scheduler.add(request)
        self._welcome(request)
        return request.id

    def fork(self, id: str, parameters: SamplingParameters, from_prompt: bool = False) -> str:
        """A second answer, which goes on from what request `id` has been told, or from its prompt.

        It shares the first one's blocks; the first to write into one gets a copy.
        """
        parent = self.requests.get(id)
        if parent is None:
            raise InputError(f"request '{id}' is not here, it may have ended: add its tokens")
        tokens = parent.prompt if from_prompt else parent.tokens
        child = self._request(tokens, parameters, parent.adapter, None)
        self.scheduler.fork(parent, child)
        self._welcome(child)
        return child.id

    def cancel(self, id: str) -> bool:
        """Ends a request and frees its blocks; False where it is not here (any more)."""
        if id not in self.requests:
            return False
        self.cancelled.add(id)
        self._end(self.requests[id], "cancelled")
        return True

    def step(self) -> list[Output]:
        """One forward pass; [] where nobody is here."""
        began = self.clock()
        self.cancelled.clear()
        if self.proposer is not None:
            self._propose(self.proposer)
        plan = self.scheduler.schedule()
        if not plan.work:
            return []
        for work in plan.work:
            if work.request.times.started is None:
                work.request.times.started = began
        read = self.runner.run(plan)
        outputs, kept = draw_answers(read.sampled, read.logits, self.clock())
        self._settle(plan, read, kept)
        self._measure(plan, len(outputs), sum(map(len, kept.values())), began)
        for output in outputs:
            if output.finish_reason is not None:
                self._end(self.requests[output.id], output.finish_reason)
        return outputs

    def stream(self) -> Iterator[Output]:
        """All requests' outputs, until none is left; in between, add and cancel as you like."""
        while self.busy:
            for output in self.step():
                if output.id not in self.cancelled:
                    yield output

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters | Sequence[SamplingParameters] | None = None,
    ) -> list[Answer]:
        """All prompts' answers, in the prompts' order; one's parameters, or all's."""
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
                answers[self.add(prompt, one)] = Answer()
            for output in self.stream():
                answers[output.id].extend(output)
        finally:  # nobody is left, but where something went wrong
            for id in answers:
                self.cancel(id)
        return list(answers.values())

    def _request(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        adapter: str | None,
        id: str | None,
    ) -> Request:
        if id is None:
            names = (f"request-{number}" for number in itertools.count(self.added))
            id = next(name for name in names if name not in self.requests)
        if id in self.requests:
            raise InputError(f"a request is called '{id}' already: give another id, or none")
        prompt = as_tokens(prompt)
        check_readable(prompt, parameters.max_new_tokens, self.config)
        if parameters.stop and self.decode is None:
            raise InputError("stop strings need text: give the engine `decode`, or stop_tokens")
        text = None if self.decode is None else TextStream(self.decode, prompt, parameters.stop)
        times = Times(arrived=self.clock())
        key = self._adapter_key(adapter)
        return Request(id, tuple(prompt), parameters, times, adapter, key, text=text)

    def _adapter_key(self, name: str | None) -> tuple[str, int] | None:
        """A name may be given to another adapter later, whose keys and values are others."""
        if name is None:
            return None
        if self.adapters is None:
            raise InputError(f"adapter '{name}' was asked for: give the engine an AdapterBank")
        return name, self.adapters.number(name)

    def _welcome(self, request: Request) -> None:
        self.requests[request.id] = request
        self.added += 1

    def _propose(self, proposer: Proposer) -> None:
        """Drafts are for requests that lack one token only, and never reach past the answer."""
        asked = {
            request: request.parameters.max_new_tokens - request.num_told - 1
            for request in self.scheduler.running
            if request.num_computed_tokens == len(request.tokens) - 1
        }
        asked = {request: most for request, most in asked.items() if most > 0}
        if asked:
            found = proposer.propose(list(asked), list(asked.values()))
            check_drafts(found, list(asked.values()), self.config.vocab_size)
            for request, draft in zip(asked, found):
                request.draft = draft

    def _settle(self, plan: Plan, read: Pass, kept: Kept) -> None:
        """The cache and the accounts hold what was read of each text, and what was kept of its
        draft: a tree's way is moved together, as if it had been a chain."""
        for work in plan.work:
            request, path = work.request, kept.get(work.request.id, [])
            known = work.count - len(work.draft)
            places = [*range(known), *(known + node for node in path)]
            self.runner.cache.keep(request.table.blocks, work.start, places)
            if self.proposer is not None:
                hidden = read.hidden[read.rows[request.id]][places]
                self.proposer.read(request, work.start, hidden)
            self.scheduler.computed(work, len(path))

    def _end(self, request: Request, reason: str) -> None:
        request.times.ended = self.clock()
        self.scheduler.finish(request, reason)
        if self.proposer is not None:
            self.proposer.forget(request.id)
        del self.requests[request.id]

    def _measure(self, plan: Plan, sampled: int, kept: int, began: float) -> None:
        blocks, running = self.scheduler.blocks, self.scheduler.running
        tables, size = [request.table for request in running], blocks.block_size
        held = sum(one.num_computed_tokens - one.table.gone * size for one in running)
        self.steps.append(
            StepMetrics(
                seconds=self.clock() - began,
                requests=len(plan.work),
                tokens=plan.num_tokens,
                sampled=sampled,
                drafted=sum(len(work.draft) for work in plan.work),
                kept=kept,
                waiting=len(self.scheduler.waiting),
                preemptions=len(plan.preempted),
                blocks_used=blocks.used,
                bytes_used=blocks.used * self.runner.cache.page_bytes,
                empty_places=sum(table.held for table in tables) * size - held,
                hit_rate=blocks.hit / max(1, blocks.queried),
            )
        )
