"""The wire format: a header that describes what follows, then pages, then a generator's state.

    header    request, kind, page, pages, token       5 int64; the receiver makes room for the rest
    payload   2·L·K·pages·S·C numbers                 pages that the last step has filled
    state     5,056 bytes                             LAST, of requests that draw: where they were

A prompt that takes several steps is sent as it grows. Nothing is waited for before the next step:
a message is under way while the rank computes the next prompt, and is held until it has left.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

import torch
from torch import Tensor

from minitrain.inference.disaggregated.pages import take
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Request
from minitrain.ranks.group import Group
from minitrain.ranks.work import Work

MOST_UNDER_WAY = 64  # messages that are held; with more the sender waits for the oldest


class Kind(IntEnum):
    PAGES = 0  # of a prompt that is not read to its end yet
    LAST = 1  # the rest of its pages, and its first token
    DROP = 2  # it ended with its first token: nothing more will come
    END = 3  # of all that this rank has to send


class Outgoing:
    """A transfer from this rank's engine to rank `to`, whose pages have the same size."""

    def __init__(self, group: Group, engine: Engine, to: int) -> None:
        self.group, self.engine, self.to = group, engine, to
        self.sent: dict[str, int] = {}  # pages, by request
        self.page_bytes = 0
        self.under_way: deque[Work] = deque()

    def grown(self, request: Request) -> None:
        """After a step: the pages that are full now, and were not sent."""
        full = request.num_computed_tokens // self.engine.scheduler.blocks.block_size
        if full > self.sent.get(request.id, 0):
            self._pages(Kind.PAGES, request, full, -1)

    def last(self, request: Request, token: int) -> None:
        """The request's first token was drawn: all of its pages that are left."""
        self._pages(Kind.LAST, request, len(request.table.blocks), token)
        if not request.parameters.greedy:
            self._send(request.generator.get_state())

    def drop(self, number: int) -> None:
        self._header(number, Kind.DROP)

    def end(self) -> None:
        """Returns when all has left."""
        self._header(-1, Kind.END)
        while self.under_way:
            self.under_way.popleft().wait()

    def _pages(self, kind: Kind, request: Request, stop: int, token: int) -> None:
        first = max(self.sent.get(request.id, 0), request.table.gone)  # nobody will read the gone
        self.sent[request.id] = stop = max(first, stop)
        self._header(int(request.id), kind, first, stop - first, token)
        if stop > first:
            pages = take(self.engine.runner.cache, request.table.blocks[first:stop])
            self.page_bytes += pages.nbytes
            self._send(pages)

    def _header(self, number: int, kind: Kind, first: int = 0, count: int = 0, token: int = -1):
        self._send(torch.tensor([number, kind, first, count, token], device=self.group.device))

    def _send(self, tensor: Tensor) -> None:
        """On an emulated clock the receiver may really come much later, and is not waited for."""
        self.under_way.append(self.group.isend(tensor, self.to))
        while len(self.under_way) > MOST_UNDER_WAY and not self.group.clock.emulated:
            self.under_way.popleft().wait()
