"""The transfer of a request's keys and values from one rank's paged cache into another's.

    header    request, kind, page, pages, token       5 int64; the receiver allocates the rest
    payload   2·L·K·pages·S·C numbers                 pages filled by the last step
    state     5,056 bytes                             with LAST, for sampled requests: generator

Pages lie in different orders on the two sides; on the wire they are in sequence order. A prompt
that takes several steps is sent as it grows. The next step waits for no message: a message is in
flight while the rank computes the next prompt, and its buffer is held until it is sent.

The receiver's engine keeps stepping meanwhile. On real ranks a thread for each sender waits in
`recv`, and puts messages into a queue that the engine's thread checks between steps. On an emulated
clock there is no thread, because real arrival order means nothing: each sender's next message is
peeked at, the one that starts first is received first, and arrives when its last byte does.

    sender 0   ──[A]───────[C]──▶          peeked: A (1.0 s), B (1.4 s)   received: A
    sender 1   ─────[B]─────────▶          peeked: C (2.0 s), B (1.4 s)   received: B

Shapes: L layers  K key/value heads  n pages of the sequence  S positions in a page  C head size.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from minitrain.inference.cache.paged import PagedCache
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Request
from minitrain.network.logical_clock import LogicalClock
from minitrain.ranks.group import Group
from minitrain.ranks.work import Work

MOST_UNDER_WAY = 64  # messages in flight; beyond that the sender waits for the oldest


class Kind(IntEnum):
    PAGES = 0  # of a prompt that is not finished yet
    LAST = 1  # the rest of its pages, and its first token
    DROP = 2  # it ended with its first token: nothing more follows
    END = 3  # this rank has nothing more to send


def take(cache: PagedCache, blocks: Sequence[int]) -> Tensor:
    """A copy (2, L, K, n, S, C): the pages may be overwritten before it is sent."""
    pages = torch.tensor(blocks, device=cache.keys.device)
    return torch.stack([held.index_select(2, pages) for held in (cache.keys, cache.values)])


def put(cache: PagedCache, blocks: Sequence[int], sent: Tensor) -> None:
    """Writes sent (2, L, K, n, S, C) into these n pages."""
    pages = torch.tensor(blocks, device=cache.keys.device)
    for held, own in zip((cache.keys, cache.values), sent):
        held.index_copy_(2, pages, own)


class Outgoing:
    """A transfer from this rank's engine to rank `to`, whose pages have the same size."""

    def __init__(self, group: Group, engine: Engine, to: int) -> None:
        self.group, self.engine, self.to = group, engine, to
        self.sent: dict[str, int] = {}  # pages, by request
        self.page_bytes = 0
        self.under_way: deque[Work] = deque()

    def grown(self, request: Request) -> None:
        """After a step: sends newly filled pages."""
        full = request.num_computed_tokens // self.engine.scheduler.blocks.block_size
        if full > self.sent.get(request.id, 0):
            self._pages(Kind.PAGES, request, full, -1)

    def last(self, request: Request, token: int) -> None:
        """After the request's first token: sends all of its remaining pages."""
        self._pages(Kind.LAST, request, len(request.table.blocks), token)
        if not request.parameters.greedy:
            self._send(request.generator.get_state())

    def drop(self, number: int) -> None:
        self._header(number, Kind.DROP)

    def end(self) -> None:
        """Returns when everything is sent."""
        self._header(-1, Kind.END)
        while self.under_way:
            self.under_way.popleft().wait()

    def _pages(self, kind: Kind, request: Request, stop: int, token: int) -> None:
        first = max(self.sent.get(request.id, 0), request.table.gone)  # outside the window
        self.sent[request.id] = stop = max(first, stop)
        self._header(int(request.id), kind, first, stop - first, token)
        if stop > first:
            pages = take(self.engine.runner.cache, request.table.blocks[first:stop])
            self.page_bytes += pages.nbytes
            self._send(pages)

    def _header(self, number: int, kind: Kind, first: int = 0, count: int = 0, token: int = -1):
        self._send(torch.tensor([number, kind, first, count, token], device=self.group.device))

    def _send(self, tensor: Tensor) -> None:
        """Sends without waiting: on an emulated clock the receiver may really be much later."""
        self.under_way.append(self.group.isend(tensor, self.to))
        while len(self.under_way) > MOST_UNDER_WAY and not self.group.clock.emulated:
            self.under_way.popleft().wait()


@dataclass(frozen=True)
class Piece:
    """A message; its last byte arrived `at`, on the group's clock."""

    number: int  # of the request
    kind: Kind
    first: int  # page
    pages: Tensor | None  # (2, L, K, n, S, C)
    token: int
    state: Tensor | None
    at: float


class Wire:
    """All messages from one rank, in order. `draws[number]`: LAST comes with a generator state."""

    def __init__(
        self, group: Group, cache: PagedCache, source: int, draws: Mapping[int, bool]
    ) -> None:
        self.group, self.cache, self.source, self.draws = group, cache, source, draws

    def ask(self) -> Work:
        """Starts receiving the next header; it can be waited for at any time."""
        header = torch.empty(5, dtype=torch.int64, device=self.group.device)
        return self.group.irecv(header, self.source)

    def rest(self, header: Work) -> Piece:
        """Receives the rest of the message, waiting if needed."""
        number, kind, first, count, token = header.wait().tolist()
        work, pages, state = header, None, None
        if count:
            layers, heads, _, *place = self.cache.keys.shape
            room = self.cache.keys.new_empty(2, layers, heads, count, *place)
            work = self.group.irecv(room, self.source)
            pages = work.wait()
        if kind == Kind.LAST and self.draws[number]:
            state = torch.empty_like(torch.get_rng_state())
            work = self.group.irecv(state, self.source)
            work.wait()
        end = work.op.finished or self.group.now()
        return Piece(number, Kind(kind), first, pages, token, state, end)


class ThreadedInbox:
    def __init__(self, wires: Sequence[Wire]) -> None:
        self.queue: SimpleQueue[Piece | BaseException] = SimpleQueue()
        for wire in wires:
            threading.Thread(target=self._listen, args=(wire,), daemon=True).start()

    def _listen(self, wire: Wire) -> None:
        try:
            kind = None
            while kind != Kind.END:
                piece = wire.rest(wire.ask())
                kind = piece.kind
                self.queue.put(piece)
        except BaseException as error:  # a sender is gone: the engine's thread raises it
            self.queue.put(error)

    def arrived(self, wait: bool) -> list[Piece]:
        """The messages since the last call; with `wait`, at least one."""
        pieces = [self.queue.get()] if wait else []
        with suppress(Empty):
            while True:
                pieces.append(self.queue.get_nowait())
        for piece in pieces:
            if isinstance(piece, BaseException):
                raise piece
        return pieces


class EmulatedInbox:
    def __init__(self, wires: Sequence[Wire], clock: LogicalClock) -> None:
        self.clock = clock
        self.heads = {wire: wire.ask() for wire in wires}
        self.landed: deque[Piece] = deque()  # received; the last byte may arrive later

    def arrived(self, wait: bool) -> list[Piece]:
        if wait:
            at = self._look_ahead(float("inf")).at
            self.clock.advance(max(0.0, at - self.clock.now()))
        pieces, now = [], self.clock.now()
        while self._look_ahead(now) is not None:
            pieces.append(self.landed.popleft())
        return pieces

    def _look_ahead(self, until: float) -> Piece | None:
        """The next piece, if its last byte arrives by `until`."""
        if not self.landed and self.heads:
            begins = {wire: self.clock.first_byte(head.op) for wire, head in self.heads.items()}
            wire = min(begins, key=begins.get)
            if begins[wire] <= until:
                self._take(wire)
        return self.landed[0] if self.landed and self.landed[0].at <= until else None

    def _take(self, wire: Wire) -> None:
        with self.clock.beside():
            piece = wire.rest(self.heads.pop(wire))
        self.landed.append(piece)
        if piece.kind != Kind.END:
            self.heads[wire] = wire.ask()


def open_inbox(group: Group, wires: Sequence[Wire]) -> ThreadedInbox | EmulatedInbox:
    if isinstance(group.clock, LogicalClock):
        return EmulatedInbox(wires, group.clock)
    return ThreadedInbox(wires)
