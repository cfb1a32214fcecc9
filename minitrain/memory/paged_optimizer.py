"""A paged optimizer: its state is evicted when memory is short, and paged in when touched.

QLoRA keeps Adam's state in CUDA's unified memory. While everything fits nothing moves; activations
of a long sequence push pages out to the CPU, instead of an out-of-memory error, and when the next
step touches an evicted page, that page fault brings it back:

    page table   weight 0: [p0 p1 p2]  weight 1: [p3 p4]  …     resident p1 p2 p3, oldest first
    touch p0     a fault: evict p1 (written back if dirty), read p0, continue

Simulated: the optimizer runs as usual, on tensors that never move, while its accesses go through a
page table that counts. Eviction is least recently used. An optimizer cycles through its state, so
LRU evicts each page just before it is needed: a state one page larger than memory faults on every
page of every step (`PageTable.faults`); if it fits, on none. Tensors smaller than a page stay in
memory, as small ones do in bitsandbytes.

Papers: Dettmers et al. 2023, QLoRA (arXiv:2305.14314), section 3; Belady 1966 on LRU with cyclic
access. Lab: e07.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap  # torch wraps `step` when an optimizer is made

from torch import Tensor

from minitrain.errors import InputError
from minitrain.optimizers.adamw import OneByOne

PAGE = 2**16  # bytes: unified memory moves at least 64 KiB


class PageTable:
    """Tracks the pages in the device's memory, at most `capacity_bytes` of them.

    `faults` counts touched pages that were evicted; `bytes_in` and `bytes_out` the resulting bus
    traffic. A page that is touched for the first time is allocated, not read.
    """

    def __init__(self, capacity_bytes: int, page_bytes: int = PAGE):
        if page_bytes < 1 or capacity_bytes < page_bytes:
            raise InputError(
                f"{capacity_bytes:,} bytes hold no page of {page_bytes:,}: give more memory, or "
                "smaller pages"
            )
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident: OrderedDict[int, bool] = OrderedDict()  # page -> is it dirty; oldest first
        self.ranges: dict[object, range] = {}  # the pages of each key, whole pages each
        self.faults = self.bytes_in = self.bytes_out = 0

    @property
    def pages(self) -> int:
        """The number of pages, resident or not."""
        return sum(map(len, self.ranges.values()))

    def touch(self, key: object, nbytes: int, write: bool = True) -> None:
        """Reads, and writes, all pages of `key`."""
        new = key not in self.ranges
        if new:
            self.ranges[key] = range(self.pages, self.pages + -(-nbytes // self.page_bytes))
        for page in self.ranges[key]:
            if page not in self.resident and not new:
                self.faults += 1
                self.bytes_in += self.page_bytes
            dirty = self.resident.pop(page, False) or write
            self.evict_to(self.frames - 1)
            self.resident[page] = dirty

    @contextmanager
    def pressure(self, nbytes: int) -> Iterator[None]:
        """Reserves `nbytes` for other uses, e.g. activations; evicted pages stay out after it."""
        taken = -(-nbytes // self.page_bytes)
        if taken >= self.frames:
            raise InputError(
                f"{nbytes:,} bytes are wanted of {self.frames * self.page_bytes:,}: even with all "
                "state paged out they do not fit; recompute activations, or use shorter sequences"
            )
        self.frames -= taken
        self.evict_to(self.frames)
        try:
            yield
        finally:
            self.frames += taken

    def evict_to(self, count: int) -> None:
        """Keeps the `count` most recently touched pages; evicted dirty ones are written back."""
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            self.bytes_out += self.page_bytes if dirty else 0


def paged(kind: type[OneByOne], parameters, table: PageTable, **settings) -> OneByOne:
    """An optimizer of this kind whose state goes through the table, with bitwise equal steps:
    `paged(Adam8bit, model.parameters(), PageTable(2**26), lr=1e-4)`.

    InputError if the kind updates many tensors at a time, in unknown order.
    """
    if not issubclass(kind, OneByOne) or unwrap(kind.step) is not unwrap(OneByOne.step):
        raise InputError(
            f"{kind.__name__} moves many parameters at a time, and pages come one after the other: "
            "use NaiveAdamW, Adam8bit, Lion, Adafactor or SGD"
        )

    class Paged(kind):
        def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict) -> None:
            for name, value in state.items():
                if value.nbytes >= table.page_bytes:
                    table.touch((id(weight), name), value.nbytes)
            super().move(weight, grad, group, state)

    return Paged(parameters, **settings)
