"""Pipeline parallelism: each rank holds some layers, and microbatches pass from rank to rank.

A step sends 2·(p-1)·B·T·D numbers a microbatch, between neighbours only: less than any other
parallelism. The price is the bubble, in which ranks wait; more microbatches m shrink it:

    no schedule   rank 0  F0 ·· ·· B0 F1 ·· ·· B1        1 of p ranks works at a time
                  rank 1  ·· F0 B0 ·· ·· F1 B1 ··
    1F1B          rank 0  F0 F1 ·· B0 F2 B1 F3 B2 B3     idle (p-1)/m of the work
                  rank 1  ·· F0 B0 F1 B1 F2 B2 F3 B3

One executor runs every list of operations from `schedules.py`, with several chunks a rank, receives
posted early and split backwards; `plain.py` is the short version.

Messages between two ranks arrive in the order in which they were sent. So a rank posts its receives
in the order in which the *other* rank runs its operations, and early: while it computes one
operation, the message for the next is in flight. It never waits for a send: the send is done, and
its buffer free, once the receiver replies with something computed from it or later.

    rank 0   F0 ─send→ F1 ─send→ ·wait· B0 …
    rank 1       └→ F0 (receive of F1's input posted) B0 ─send→ F1 …

Papers: Huang et al. 2019 (GPipe), Narayanan et al. 2019 (1F1B), 2021 (interleaved), Qi et al. 2024
(zero-bubble), DeepSeek-AI 2024 (DualPipe). Lab: e02c_pipeline_parallel.
p ranks, m microbatches; B batch  T tokens  D width.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.plain import Loss
from minitrain.parallel.pipeline.schedules import forwards_alone
from minitrain.parallel.pipeline.split_backward import SplitBackward, noting_uses
from minitrain.parallel.pipeline.stages import Stage, holders
from minitrain.ranks.group import Group
from minitrain.ranks.work import Work


class Pipeline:
    """Runs a schedule over the ranks of `group`; `stages[c]` is this rank's chunk c (see `cut`)."""

    def __init__(self, group: Group, schedule: Schedule, stages: Sequence[Stage]) -> None:
        if group.size != len(schedule.ranks) or len(stages) != schedule.chunks:
            raise InputError(
                f"'{schedule.name}' for {len(schedule.ranks)} ranks with {schedule.chunks} chunks "
                f"each, given to {group.size} ranks with {len(stages)} stages: make it for them"
            )
        self.group, self.schedule, self.stages = group, schedule, list(stages)
        self.down = group.subgroup(range(group.size))  # for messages to lower ranks
        self.shared = shared_parameters(group, schedule, self.stages)
        self.live = self.peak_live = 0  # passes whose activations are held, now and at most

    def run(self, batches: Sequence[Any], loss: Loss) -> Tensor:
        """Forward and backward of one step: adds the whole batch's gradient to every `.grad`.

        Every rank takes the same `batches`, which have tokens (B, T), documents and positions, and
        `loss(logits, batch)`, a microbatch's share of the step's loss, such as `share_of_loss`.
        Call it once a step, on cleared gradients: gradients of shared parameters are summed at the
        end. Returns the sum of this rank's shares; the sum over ranks is the step's loss.
        """
        if len(batches) != self.schedule.microbatches:
            raise InputError(
                f"{len(batches)} microbatches for a schedule of {self.schedule.microbatches}: "
                f"give as many, or make the schedule for {len(batches)}"
            )
        total = self.execute(self.schedule, batches, loss)
        self.add_up_shared()
        return total

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Any], loss: Loss) -> Tensor:
        """The same sum for any number of `batches`, forward only, without gradients."""
        total = self.execute(forwards_alone(self.schedule, len(batches)), batches, loss)
        self.live = 0  # nothing was kept for a backward
        return total

    def execute(self, schedule: Schedule, batches: Sequence[Any], loss: Loss) -> Tensor:
        """Runs this rank's operations in order -> the sum of its shares of the loss."""
        step = RankStep(self.stages, batches, loss, schedule.splits_backward)
        empty = lambda i: self.stages[0].message(batches[i])  # noqa: E731
        messages = Messages(self.group, self.down, schedule, empty)
        order = schedule.ranks[self.group.rank]
        self.peak_live = self.live
        self.group.trace.mark("pipeline")
        for operation, following in zip(order, [*order[1:], None]):
            arrived = messages.receive(operation)
            if following is not None:
                messages.post_receive(following)  # in flight while this rank computes
            messages.send(operation, self.compute(step, operation, arrived))
        messages.finish()
        return step.total

    def compute(self, step: RankStep, operation: Operation, arrived: Tensor | None) -> Any:
        """Runs one operation and returns the tensor for another stage, if any; traces its begin and
        end."""
        self.group.trace.mark(operation)
        self.live += operation.kind == "F"
        self.peak_live = max(self.peak_live, self.live)
        result = step.run(operation, arrived)
        self.live -= operation.kind == ("W" if step.splits else "B")
        self.group.trace.mark(operation)
        return result

    def add_up_shared(self) -> None:
        """Sums the gradients of parameters held by several ranks, over those ranks."""
        works = []
        for group, parameters in self.shared:
            for parameter in parameters:
                if parameter.grad is None:  # no microbatch used it
                    parameter.grad = torch.zeros_like(parameter)
                works.append(group.all_reduce(parameter.grad, async_op=True))
        for work in works:
            work.wait()


def shared_parameters(
    group: Group, schedule: Schedule, stages: Sequence[Stage]
) -> list[tuple[Group, list[nn.Parameter]]]:
    """This rank's parameters that other ranks hold too, in the same order on all of them."""
    shared: dict[tuple[int, ...], dict[nn.Parameter, None]] = {}
    for stage in sorted(stages, key=lambda stage: stage.index):
        for parameter, ranks in holders(schedule, stage):
            if len(ranks) > 1 and parameter.requires_grad:
                shared.setdefault(ranks, {})[parameter] = None
    return [(group.subgroup(ranks), list(shared[ranks])) for ranks in sorted(shared)]


@dataclass
class Pass:
    """The record of a microbatch's forward through a chunk, kept for its backward."""

    x: Tensor | None  # the input, with its gradient
    root: Tensor  # a scalar: the loss, or a stand-in for the output
    returned: list[Tensor]  # holds the gradient of the output before the backward
    split: SplitBackward | None


class RankStep:
    """The forwards and backwards of one step of this rank, one by one."""

    def __init__(
        self, stages: Sequence[Stage], batches: Sequence[Any], loss: Loss, splits: bool
    ) -> None:
        self.stages, self.batches, self.loss, self.splits = stages, batches, loss, splits
        self.held: dict[tuple[int, int], Pass] = {}  # by microbatch and chunk
        self.total = torch.zeros((), device=stages[0].device)

    def run(self, operation: Operation, arrived: Tensor | None) -> Tensor | None:
        kinds = {"F": self.forward, "B": self.backward, "W": self.weights}
        return kinds[operation.kind](operation, arrived)

    def forward(self, operation: Operation, x: Tensor | None) -> Tensor | None:
        _, i, chunk = operation
        stage, returned = self.stages[chunk], []
        x = None if x is None else x.requires_grad_()
        with noting_uses(stage) if self.splits else nullcontext() as uses:
            out = stage(x, self.batches[i])
        if stage.head is None:
            root = Sent.apply(out, returned)
        else:
            root = self.loss(out, self.batches[i])
            self.total = self.total + root.detach()
        split = SplitBackward(stage, uses) if self.splits else None
        self.held[i, chunk] = Pass(x, root, returned, split)
        return out.detach() if stage.head is None else None

    def backward(self, operation: Operation, dy: Tensor | None) -> Tensor | None:
        place = operation.microbatch, operation.chunk
        if dy is not None:
            self.held[place].returned.append(dy)
        if self.splits:
            done = self.held[place]
            return done.split.inputs(done.root, done.x)
        done = self.held.pop(place)
        done.root.backward()
        return None if done.x is None else done.x.grad

    def weights(self, operation: Operation, _: None) -> None:
        self.held.pop((operation.microbatch, operation.chunk)).split.weights()


class Sent(torch.autograd.Function):
    """A stand-in for an output already sent: its place in the graph, without its data."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, returned: list[Tensor]) -> Tensor:
        ctx.returned = returned
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.returned.pop(), None


# ---- sends and receives, known beforehand from the schedule ----


class Message(NamedTuple):
    """A message in flight; `place`: where in the peer's order it is produced, or consumed."""

    work: Work
    peer: int
    place: int


class Messages:
    """`empty(i)` is a buffer for the tensor between two stages of microbatch i, either direction.

    `up` and `down` are groups of the same ranks, for messages to higher and to lower ranks: on GPUs
    an early receive blocks every later message of the same pair and process group.
    """

    def __init__(
        self, up: Group, down: Group, schedule: Schedule, empty: Callable[[int], Tensor]
    ) -> None:
        self.up, self.down, self.rank = up, down, up.rank
        self.schedule, self.empty = schedule, empty
        self.places = [{op: i for i, op in enumerate(order)} for order in schedule.ranks]
        peers = [peer for peer in range(up.size) if peer != self.rank]
        self.coming = {peer: deque(self._messages_from(peer)) for peer in peers}
        self.arriving: dict[Operation, Message] = {}
        self.kept: dict[Operation, Tensor] = {}  # from this rank to itself
        self.leaving: dict[int, list[Message]] = defaultdict(list)

    def post_receive(self, operation: Operation) -> None:
        """Posts the receive of the operation's input, and of all before it."""
        source = self.schedule.source(self.rank, operation)
        if source is None or source[0] == self.rank:
            return
        peer = source[0]
        while operation not in self.arriving:
            mine, place = self.coming[peer].popleft()
            way = self.up if peer < self.rank else self.down
            work = way.irecv(self.empty(mine.microbatch), peer)
            self.arriving[mine] = Message(work, peer, place)

    def receive(self, operation: Operation) -> Tensor | None:
        """Waits for the operation's input and returns it; None if it needs no message."""
        if self.schedule.source(self.rank, operation) is None:
            return None
        if operation in self.kept:
            return self.kept.pop(operation)
        self.post_receive(operation)
        message = self.arriving.pop(operation)
        tensor = message.work.wait()
        self._free_buffers(message.peer, message.place)
        return tensor

    def send(self, operation: Operation, result: Tensor | None) -> None:
        """Sends the operation's result to its consumer."""
        target = self.schedule.target(self.rank, operation)
        if target is None:
            return
        peer, theirs = target
        assert result is not None, f"{operation} has made nothing for rank {peer}"
        if peer == self.rank:
            self.kept[theirs] = result
        else:
            way = self.up if peer > self.rank else self.down
            work = way.isend(result, peer)
            self.leaving[peer].append(Message(work, peer, self.places[peer][theirs]))

    def finish(self) -> None:
        """Waits until all sends are done."""
        for peer in self.leaving:
            self._free_buffers(peer, len(self.places[peer]))

    def _messages_from(self, peer: int) -> Iterator[tuple[Operation, int]]:
        for place, operation in enumerate(self.schedule.ranks[peer]):
            target = self.schedule.target(peer, operation)
            if target is not None and target[0] == self.rank:
                yield target[1], place

    def _free_buffers(self, peer: int, place: int) -> None:
        """The peer has reached `place` of its order: every input it used before has arrived."""
        for message in self.leaving[peer]:
            if message.place <= place:
                message.work.wait()
        self.leaving[peer] = [message for message in self.leaving[peer] if message.place > place]
