"""Adapters in pages of one rank: a pool of a fixed size, and who is in it.

    page        0      1     2     3     4     5     6       a page: a row of A and a column of B
    holds       zeros  fr.0  fr.1  sql.0 fr.2  sql.1 free
    table  fr   1 2 4      sql  3 5 0      nobody  0 0 0     padded to the highest rank with page 0

An adapter of rank R takes R pages, wherever they are free, and the same pages in every layer: ranks
may differ and nothing is moved to make room. When there is none, the adapter that was used longest
ago leaves. All that ever were added stay in the host's memory, from where they come back.
Cost: a page is Σ (I + O) numbers over the adapted layers; a miss copies R of them to the device.
Paper: Sheng et al., S-LoRA, arXiv 2311.03285, section 5. Shapes: I, O features in and out  R rank
P pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.errors import InputError, unknown_name
from minitrain.words import bytes_text

ZERO_PAGE = 0


@dataclass(frozen=True)
class Factors:
    """One adapter: for each layer's path A (R, I) and B (O, R), and the scaling that they share."""

    layers: dict[str, tuple[Tensor, Tensor]]
    scaling: float

    @property
    def rank(self) -> int:
        return max(len(a) for a, _ in self.layers.values())


class PagePool:
    """`sizes`: path -> (I, O) of every layer that an adapter may be on; `budget_bytes` of pages.

    `a[path]` (P, I) and `b[path]` (P, O) are the pages. Counts `hits`, `misses` and `evictions`.
    """

    def __init__(
        self,
        sizes: dict[str, tuple[int, int]],
        budget_bytes: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.page_bytes = sum(i + o for i, o in sizes.values()) * dtype.itemsize
        pages = int(budget_bytes // self.page_bytes)
        if pages < 2:
            raise InputError(
                f"a budget of {bytes_text(budget_bytes)} holds no adapter: give at least "
                f"{bytes_text(2 * self.page_bytes)}, a page of zeros and one of rank 1"
            )
        place = {"device": device, "dtype": dtype}
        self.a = {path: torch.zeros(pages, i, **place) for path, (i, _) in sizes.items()}
        self.b = {path: torch.zeros(pages, o, **place) for path, (_, o) in sizes.items()}
        self.free = list(range(pages - 1, ZERO_PAGE, -1))
        self.capacity = len(self.free)
        self.known: dict[str, Factors] = {}
        self.added = 0
        self.numbers: dict[str, int] = {}  # the how-manieth to be added: a name may come again
        self.table: OrderedDict[str, list[int]] = OrderedDict()  # used longest ago first
        self.hits = self.misses = self.evictions = 0

    @property
    def bytes_held(self) -> int:
        """By the pages, used or free, that of zeros among them."""
        return sum(t.untyped_storage().nbytes() for t in (*self.a.values(), *self.b.values()))

    def add(self, name: str, factors: Factors) -> None:
        """Makes an adapter known; it takes no page until a batch asks for it."""
        if name in self.known:
            raise InputError(
                f"an adapter is called '{name}' already: remove it, or take another name"
            )
        if unknown := [path for path in factors.layers if path not in self.a]:
            raise InputError(
                f"adapter '{name}' is on {unknown[0]}, which this bank does not serve: name it in "
                "targets when the bank is made"
            )
        if factors.rank > self.capacity:
            raise InputError(
                f"adapter '{name}' of rank {factors.rank} needs "
                f"{bytes_text((factors.rank + 1) * self.page_bytes)}, and the budget has "
                f"{self.capacity} pages: give it more"
            )
        for path, (a, b) in factors.layers.items():
            wanted, found = (self.a[path].shape[1], self.b[path].shape[1]), (a.shape[1], len(b))
            if wanted != found:
                raise InputError(
                    f"adapter '{name}' has {found[0]} to {found[1]} features on {path}, and the "
                    f"model {wanted[0]} to {wanted[1]}: it belongs to another model"
                )
        self.known[name] = factors
        self.added += 1
        self.numbers[name] = self.added

    def remove(self, name: str) -> None:
        """Forgets an adapter, in pages or not."""
        self._check_known(name)
        if name in self.table:
            self._leave(name)
        del self.known[name]

    def ranks(self, names: Collection[str]) -> int:
        """The sum of these adapters' ranks; InputError for an unknown name."""
        for name in names:
            self._check_known(name)
        return sum(self.known[name].rank for name in set(names))

    def ensure(self, names: Collection[str]) -> None:
        """All of these are in pages when it returns; none of them leaves for another."""
        names = list(dict.fromkeys(names))
        needed = self.ranks(names)
        if needed > self.capacity:
            raise InputError(
                f"the {len(names)} adapters of this batch have {needed} ranks together, and the "
                f"budget has room for {self.capacity}: split the batch, or give "
                f"{bytes_text((needed + 1) * self.page_bytes)}"
            )
        for name in names:
            if name in self.table:
                self.hits += 1
                self.table.move_to_end(name)
        for name in names:
            if name not in self.table:
                self.misses += 1
                self._enter(name, names)

    @property
    def highest_rank(self) -> int:
        """The highest rank of all known adapters, in pages or not."""
        return max((factors.rank for factors in self.known.values()), default=0)

    def pages_of(self, name: str | None) -> list[int]:
        """An adapter's own; none for none."""
        return [] if name is None else self.table[name]

    def _enter(self, name: str, needed: Collection[str]) -> None:
        factors = self.known[name]
        while len(self.free) < factors.rank:
            self._leave(next(other for other in self.table if other not in needed))
            self.evictions += 1
        pages = [self.free.pop() for _ in range(factors.rank)]
        for path in self.a:
            if path in factors.layers:
                a, b = factors.layers[path]
                self.a[path][pages[: len(a)]] = a.to(self.a[path])
                self.b[path][pages[: len(a)]] = b.T.to(self.b[path])
        self.table[name] = pages

    def _leave(self, name: str) -> None:
        """Its pages are zeros again: the next one may be on fewer layers."""
        pages = self.table.pop(name)
        for path in self.known[name].layers:
            self.a[path][pages], self.b[path][pages] = 0, 0
        self.free += reversed(pages)

    def _check_known(self, name: str) -> None:
        if name not in self.known:
            raise unknown_name("adapter", name, self.known)
