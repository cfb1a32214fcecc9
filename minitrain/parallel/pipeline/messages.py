"""Point-to-point messages of a pipeline: sends and receives, known beforehand from the schedule.

Between two ranks messages arrive in the order in which they were sent. So a rank posts its receives
in the order in which the *other* rank runs its operations, and early: while it computes one
operation, the message for its next one is under way. It never waits for a send; that one is over,
and its buffer free, is known when the receiver answers with something that it computed afterwards.

    rank 0   F0 ─send→ F1 ─send→ ·wait· B0 …
    rank 1       └→ F0 (receive of F1's input posted) B0 ─send→ F1 …

On GPUs a receive that is posted early holds up every later message of its pair and process group;
so messages to higher ranks and to lower ones have a group each.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.ranks.group import Group
from minitrain.ranks.work import Work


class Message(NamedTuple):
    """A message on its way; `place` is where in the peer's order it is made, or worked on."""

    work: Work
    peer: int
    place: int


class Messages:
    """`empty(i)` is a buffer for what passes between two stages of microbatch i, either way.

    `up` and `down` are groups of the same ranks, for messages to higher and to lower ranks.
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
        """Posts the receive of what the operation works on, and of all that comes before it."""
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
        """Waits for the operation's input and returns it; None where it needs no message."""
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
        """Sends what the operation has made to whom it is for."""
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
        """Waits until everything has left."""
        for peer in self.leaving:
            self._free_buffers(peer, len(self.places[peer]))

    def _messages_from(self, peer: int) -> Iterator[tuple[Operation, int]]:
        for place, operation in enumerate(self.schedule.ranks[peer]):
            target = self.schedule.target(peer, operation)
            if target is not None and target[0] == self.rank:
                yield target[1], place

    def _free_buffers(self, peer: int, place: int) -> None:
        """The peer has come to `place` of its order: what it worked on until there has arrived."""
        for message in self.leaving[peer]:
            if message.place <= place:
                message.work.wait()
        self.leaving[peer] = [message for message in self.leaving[peer] if message.place > place]
