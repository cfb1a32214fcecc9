"""Receives KV pages while the engine keeps stepping.

Really: a thread for each sender waits in `recv`, and puts what has come into a queue that the
engine's thread looks into between two steps. On an emulated clock there is no thread, because the
order in which messages really come says nothing: each sender's next message is looked at ahead, the
one that begins first is taken off the wire first, and is there when its last byte is.

    sender 0   ──[A]───────[C]──▶          looked at: A (1.0 s), B (1.4 s)   taken: A
    sender 1   ─────[B]─────────▶          looked at: C (2.0 s), B (1.4 s)   taken: B
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import torch
from torch import Tensor

from minitrain.inference.cache.paged import PagedCache
from minitrain.inference.disaggregated.pages import room_for
from minitrain.inference.disaggregated.sending import Kind
from minitrain.network.logical_clock import LogicalClock
from minitrain.ranks.group import Group
from minitrain.ranks.work import Work


@dataclass(frozen=True)
class Piece:
    """A message; `began` and `at` are when its first and last byte came, on the group's clock."""

    source: int  # the rank that sent it
    number: int  # of the request
    kind: Kind
    first: int  # page
    pages: Tensor | None  # (2, L, K, n, S, C)
    token: int
    state: Tensor | None
    began: float
    at: float


class Wire:
    """All messages from one rank, in their order. `draws[number]`: a state comes with its LAST."""

    def __init__(
        self, group: Group, cache: PagedCache, source: int, draws: Mapping[int, bool]
    ) -> None:
        self.group, self.cache, self.source, self.draws = group, cache, source, draws

    def ask(self) -> Work:
        """For the next header; it may be waited for at any time."""
        header = torch.empty(5, dtype=torch.int64, device=self.group.device)
        return self.group.irecv(header, self.source)

    def rest(self, header: Work, began: float | None = None) -> Piece:
        """All of the message; waits for what is not here yet."""
        number, kind, first, count, token = header.wait().tolist()
        works = [header]
        began = self.group.now() if began is None else began
        if count:
            works.append(self.group.irecv(room_for(self.cache, count), self.source))
        pages = works[-1].wait() if count else None
        state = None
        if kind == Kind.LAST and self.draws[number]:
            state = torch.empty_like(torch.get_rng_state())
            works.append(self.group.irecv(state, self.source))
            works[-1].wait()
        end = works[-1].op.finished or self.group.now()
        return Piece(self.source, number, Kind(kind), first, pages, token, state, began, end)


class Inbox(Protocol):
    def arrived(self) -> list[Piece]:
        """The requests that have arrived since the last call."""

    def wait(self) -> None:
        """Until something comes."""


class ThreadedInbox:
    def __init__(self, wires: Sequence[Wire]) -> None:
        self.queue: SimpleQueue[Piece | BaseException] = SimpleQueue()
        self.seen: Piece | BaseException | None = None
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

    def arrived(self) -> list[Piece]:
        pieces = []
        while (piece := self._next()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            pieces.append(piece)
        return pieces

    def wait(self) -> None:
        if self.seen is None:
            self.seen = self.queue.get()

    def _next(self) -> Piece | BaseException | None:
        if self.seen is not None:
            piece, self.seen = self.seen, None
            return piece
        try:
            return self.queue.get_nowait()
        except Empty:
            return None


class EmulatedInbox:
    def __init__(self, wires: Sequence[Wire], clock: LogicalClock) -> None:
        self.clock = clock
        self.heads = {wire: wire.ask() for wire in wires}
        self.landed: deque[Piece] = deque()  # taken off the wire; the last byte may come later

    def arrived(self) -> list[Piece]:
        pieces, now = [], self.clock.now()
        while self._look_ahead(now) is not None:
            pieces.append(self.landed.popleft())
        return pieces

    def wait(self) -> None:
        piece = self._look_ahead(float("inf"))
        if piece is not None:
            self.clock.advance(max(0.0, piece.at - self.clock.now()))

    def _look_ahead(self, until: float) -> Piece | None:
        """The next piece, where its last byte comes by `until`."""
        if not self.landed and self.heads:
            begins = {wire: self.clock.first_byte(head.op) for wire, head in self.heads.items()}
            wire = min(begins, key=begins.get)
            if begins[wire] <= until:
                self._take(wire, begins[wire])
        return self.landed[0] if self.landed and self.landed[0].at <= until else None

    def _take(self, wire: Wire, began: float) -> None:
        with self.clock.beside():
            piece = wire.rest(self.heads.pop(wire), began)
        self.landed.append(piece)
        if piece.kind != Kind.END:
            self.heads[wire] = wire.ask()


def open_inbox(group: Group, wires: Sequence[Wire]) -> Inbox:
    if isinstance(group.clock, LogicalClock):
        return EmulatedInbox(wires, group.clock)
    return ThreadedInbox(wires)
