"""Many LoRA adapters over one model: each row of a batch has its own adapter, or none.

    bank = AdapterBank(model, budget_bytes=64e6)
    bank.load("french", "adapters/french");  bank.load("sql", "adapters/sql")
    with bank.rows(["french", None, "sql", "french"]):
        logits = model(tokens)                             # (4, T, V)

    y_b = W x_b + s_b·B_b (A_b x_b)       W x for all rows in one matmul, as without adapters;
                                          A and B gathered by page, (B, R, I) and (B, R, O)

A loop over adapters reads W once per adapter, which dominates the cost of decoding. Rows of lower
rank are padded with pages of zeros, and a row without an adapter has only those: 0 is added to it.
Rows are padded to the highest rank in the bank, not in the batch, so a row's result is bitwise the
same whichever rows share its batch. For serving: pages get no gradient. Cost a token: 2R(I + O)
FLOPs, and B·R·(I + O) numbers gathered a layer.

The adapters stay in host memory and share a device pool of pages of one rank each:

    page        0      1     2     3     4     5     6       a page: a row of A and a column of B
    holds       zeros  fr.0  fr.1  sql.0 fr.2  sql.1 free
    table  fr   1 2 4      sql  3 5 0      none  0 0 0       padded to the highest rank with page 0

An adapter of rank R takes R pages, wherever they are free, and the same pages in every layer: ranks
may differ and nothing is moved to make room. When no page is free, the least recently used adapter
is evicted. A page is Σ (I + O) numbers over the adapted layers; a miss copies R of them to the
device.
Papers: Chen et al., Punica, arXiv 2310.18547; Sheng et al., S-LoRA, 2311.03285, section 5.
Shapes: B rows  T tokens  I, O features in and out  R rank  P pages.
"""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.errors import InputError, unknown_name
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.layer import ALL_LINEAR, adapted_layers, features, find_layers, place_of
from minitrain.finetuning.methods import LoRAMethod
from minitrain.finetuning.model import adaptation_of
from minitrain.finetuning.peft_config import from_peft
from minitrain.finetuning.peft_files import peft_paths, read_adapter
from minitrain.model.swap import exchange, replace_modules
from minitrain.words import bytes_text

ZERO_PAGE = 0


class Rows:
    """The batch being computed: its pages (B, R), and its scalings (B, 1, 1).

    tables: each row's pages, none for a row without adapter; scalings: one per row. Shorter tables
    are padded with pages of zeros to `rank`, by default the longest table's length.
    """

    def __init__(
        self,
        tables: Sequence[Sequence[int]],
        scalings: Sequence[float],
        rank: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        rank = max(map(len, tables), default=0) if rank is None else rank
        filled = [[*table, *[ZERO_PAGE] * (rank - len(table))] for table in tables]
        self.pages = torch.tensor(filled, dtype=torch.long, device=device)
        self.scaling = torch.tensor(scalings, device=device, dtype=dtype)[:, None, None]

    def added(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """s·B(A x) with each row's own factors: x (B, T, I), pages a (P, I) and b (P, O) -> (B, T,
        O)."""
        a, b = a[self.pages], b[self.pages]  # (B, R, I), (B, R, O)
        inside = torch.bmm(x.to(a.dtype), a.transpose(1, 2)) * self.scaling  # (B, T, R)
        return torch.bmm(inside, b)


class RowWise(nn.Module):
    """`base_layer`, and beside it each row's pages of the pool."""

    def __init__(self, base_layer: nn.Module, bank: AdapterBank, path: str) -> None:
        super().__init__()
        self.base_layer, self.path = base_layer, path
        self.bank = [bank]  # in a list: it is no part of the model

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, I) -> (B, T, O)."""
        y, rows = self.base_layer(x), self.bank[0].current
        if rows is None:
            return y
        if x.ndim != 3 or len(x) != len(rows.pages):
            raise InputError(
                f"rows(...) named {len(rows.pages)} adapters and the batch is {tuple(x.shape)}: "
                "name one a row, None for none"
            )
        pool = self.bank[0].pool
        return y + rows.added(x, pool.a[self.path], pool.b[self.path]).to(y.dtype)


class AdapterBank:
    """Wraps the linear layers `targets` of a bare model, in place; `remove_from_model` undoes it.

    Serves LoRA, rsLoRA and PiSSA, which only add to the output. Adapters stay in host memory;
    `budget_bytes` are allocated on the model's device up front.
    """

    def __init__(
        self,
        model: nn.Module,
        budget_bytes: float,
        targets: tuple[str, ...] = ALL_LINEAR,
    ) -> None:
        if adaptation_of(model) is not None or any(isinstance(m, RowWise) for m in model.modules()):
            raise InputError("this model is adapted already: a bank needs it bare, unload(model)")
        layers = dict(find_layers(model, targets))
        if odd := [path for path, layer in layers.items() if features(layer) is None]:
            raise InputError(f"{odd[0]} is no linear layer: give targets such as ('q', 'v')")
        sizes = {path: features(layer)[::-1] for path, layer in layers.items()}
        self.pool = PagePool(sizes, budget_bytes, **place_of(next(iter(layers.values()))))
        self.model, self.current, self.in_use = model, None, set()
        wrapped = {path: (layer, RowWise(layer, self, path)) for path, layer in layers.items()}
        exchange(model, wrapped)

    def load(self, name: str, folder: str | os.PathLike) -> None:
        """An adapter in PEFT's files."""
        self.pool.add(name, factors_in(folder, self.model))

    def add(self, name: str, adapter: nn.Module | Factors) -> None:
        """Adds a copy of the adapter of a model with the same layers, or of the factors
        themselves."""
        self.pool.add(name, adapter if isinstance(adapter, Factors) else factors_of(adapter))

    def remove(self, name: str) -> None:
        if name in self.in_use:
            raise InputError(
                f"adapter '{name}' is in use by rows(...): remove it when these are computed"
            )
        self.pool.remove(name)

    def number(self, name: str) -> int:
        """The number of the adapter that now has this name; InputError if there is none."""
        self.pool.ranks([name])
        return self.pool.numbers[name]

    def fits(self, names: Collection[str]) -> bool:
        """True if there are pages for all of these in one batch."""
        return self.pool.ranks(names) <= self.pool.capacity

    @contextmanager
    def rows(self, names: Sequence[str | None]) -> Iterator[None]:
        """Inside the context, row i of every batch uses adapter `names[i]`; None: no adapter."""
        if isinstance(names, str):
            raise InputError(f"rows({names!r}): give a list with a name, or None, for each row")
        if self.current is not None:
            raise InputError("rows(...) within rows(...): name all rows at once")
        self.pool.ensure([name for name in names if name is not None])
        self.current, self.in_use = self._gather(names), set(names)
        try:
            yield
        finally:
            self.current, self.in_use = None, set()

    def _gather(self, names: Sequence[str | None]) -> Rows | None:
        if not any(names):
            return None
        page = next(iter(self.pool.a.values()))
        tables = [[] if name is None else self.pool.table[name] for name in names]
        scalings = [0.0 if name is None else self.pool.known[name].scaling for name in names]
        return Rows(tables, scalings, self.pool.highest_rank, page.device, page.dtype)

    def remove_from_model(self) -> nn.Module:
        """The bare model, as it was."""
        wrapped = [module for module in self.model.modules() if isinstance(module, RowWise)]
        replace_modules(self.model, {module: module.base_layer for module in wrapped})
        return self.model


# ---- pages ----


@dataclass(frozen=True)
class Factors:
    """One adapter: for each layer's path A (R, I) and B (O, R), and their common scaling."""

    layers: dict[str, tuple[Tensor, Tensor]]
    scaling: float

    @property
    def rank(self) -> int:
        return max(len(a) for a, _ in self.layers.values())


class PagePool:
    """`sizes`: path -> (I, O) of every layer that may have an adapter; `budget_bytes` of pages.

    `a[path]` (P, I) and `b[path]` (P, O) are the pages.
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
        self.counter = itertools.count(1)
        self.numbers: dict[str, int] = {}  # in the order of `add`: a name may be reused
        self.table: OrderedDict[str, list[int]] = OrderedDict()  # least recently used first

    @property
    def bytes_held(self) -> int:
        """Bytes of all pages, used or free, including the page of zeros."""
        return sum(t.untyped_storage().nbytes() for t in (*self.a.values(), *self.b.values()))

    def add(self, name: str, factors: Factors) -> None:
        """Registers an adapter; it takes no page until a batch uses it."""
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
        self.numbers[name] = next(self.counter)

    def remove(self, name: str) -> None:
        """Removes an adapter, whether or not it is in pages."""
        self.ranks([name])
        if name in self.table:
            self._leave(name)
        del self.known[name], self.numbers[name]

    def ranks(self, names: Collection[str]) -> int:
        """The sum of these adapters' ranks; InputError for an unknown name."""
        for name in names:
            if name not in self.known:
                raise unknown_name("adapter", name, self.known)
        return sum(self.known[name].rank for name in set(names))

    def ensure(self, names: Collection[str]) -> None:
        """Brings all of these into pages; none of them is evicted for another."""
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
                self.table.move_to_end(name)
        for name in names:
            if name not in self.table:
                self._enter(name, names)

    @property
    def highest_rank(self) -> int:
        """The highest rank of all registered adapters, in pages or not."""
        return max((factors.rank for factors in self.known.values()), default=0)

    def _enter(self, name: str, needed: Collection[str]) -> None:
        factors = self.known[name]
        while len(self.free) < factors.rank:
            self._leave(next(other for other in self.table if other not in needed))
        pages = [self.free.pop() for _ in range(factors.rank)]
        for path, (a, b) in factors.layers.items():
            self.a[path][pages[: len(a)]] = a.to(self.a[path])
            self.b[path][pages[: len(a)]] = b.T.to(self.b[path])
        self.table[name] = pages

    def _leave(self, name: str) -> None:
        """Zeroes the adapter's pages: the next one may cover fewer layers."""
        pages = self.table.pop(name)
        for path in self.known[name].layers:
            self.a[path][pages], self.b[path][pages] = 0, 0
        self.free += reversed(pages)


def factors_of(model: nn.Module) -> Factors:
    """The factors of a model adapted by LoRA, rsLoRA or PiSSA; InputError for other methods."""
    method = adaptation_of(model)
    _check_adds(method, "this model")
    layers = {}
    for path, layer in adapted_layers(model).items():
        if not isinstance(layer.adapter, LoRA):
            raise InputError(
                f"{path} is an embedding, or learns whole: a bank serves linear layers only"
            )
        a, b = (factor.cpu().clone() for factor in layer.adapter.factors())
        layers[path] = a, _of_scaling(b, layer.adapter.scaling, method.scaling)
    return Factors(layers, method.scaling)


def factors_in(folder: str | os.PathLike, model: nn.Module) -> Factors:
    """The same from PEFT's files, for this model."""
    raw, stored = read_adapter(folder, model)
    method = from_peft(raw, ("q",), str(folder))
    _check_adds(method, str(folder))
    paths, layers = peft_paths(model), {}
    for name in stored:
        path, _, factor = name.partition(".lora_")
        if factor not in ("A.weight", "B.weight"):
            raise InputError(f"{folder} holds {name}: a bank serves linear layers only, by A and B")
        if path not in paths:
            raise InputError(f"{folder} is on {path}, which this model has not")
        names = [f"{path}.lora_{factor}.weight" for factor in "AB"]
        if missing := [name for name in names if name not in stored]:
            raise InputError(f"{folder} lacks {missing[0]}: save it again")
        a, b = (stored[name] for name in names)
        own = method.at(paths[path])
        if {len(a), b.shape[1]} != {own.rank}:
            raise InputError(
                f"{folder} has {names[0]} of rank {len(a)}, and its configuration says {own.rank}: "
                "save it again"
            )
        layers[paths[path]] = a, _of_scaling(b, own.scaling, method.scaling)
    if not layers:
        raise InputError(f"{folder} holds no adapter: save it again")
    return Factors(layers, method.scaling)


def _of_scaling(b: Tensor, own: float, shared: float) -> Tensor:
    """B rescaled, for a layer with its own scaling, to the shared scaling."""
    return b if own == shared else b * (own / shared)


def _check_adds(method: object, what: str) -> None:
    if not isinstance(method, LoRAMethod) or method.dora:
        raise InputError(
            f"{what} has an adapter that does more than add B·A (DoRA, (IA)³, …): a bank serves "
            "lora, rslora, lora+ and pissa"
        )
