"""The tensors of a step: one forward pass over all new tokens of all requests.

The head is the largest matmul of a decode step: V rows of weights, in a small model more than all
its layers. A step multiplies few rows by it, always with the same weight, so `Head` packs the
weight once into the blocked layout that oneDNN reads fastest, which torch would otherwise do, or
skip, in every call (PyTorch's own compiler does the same for a frozen model). It costs a second
copy of the head.

`Weights` detects that the model is no longer the one whose keys and values are in the cache. After
an optimizer step, `disabled(model)`, a merge or another checkpoint, old entries must neither be
found for a prompt nor read by a continuing answer. Two checks:

    each step     modules, their flags and hooks, each tensor's address and version counter
    a new request also a few values of each tensor: torch's fused AdamW, and code that writes to
                  `parameter.data`, leave no other trace

Cost a step: 0.1 ms for the 77 modules of a model of six layers, and 0.1 ms more for a new request.
Shapes: N new tokens  M sampled rows  D width  V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.inference.cache.paged import PagedCache, batching_order
from minitrain.inference.engine.scheduler import Plan, Work
from minitrain.inference.forward import check_servable, forward_new
from minitrain.model.transformer import Transformer
from minitrain.ranks.group import Group

SAMPLES = 16  # values of a tensor that are compared
FEW = 64  # rows that the head's layout is chosen for: those of a decode step


class Adapters(Protocol):
    """The part of `finetuning.many.AdapterBank` that the engine needs."""

    def number(self, name: str) -> int: ...

    def fits(self, names: Collection[str]) -> bool: ...

    def rows(self, names: Sequence[str | None]) -> AbstractContextManager[None]: ...


class Pass(NamedTuple):
    """`logits` (M, V) have `samples` rows for each of `sampled`; `hidden` (N, D) is the head's
    input, and `rows` maps a request's id to its rows of it."""

    sampled: list[Work]
    logits: Tensor
    hidden: Tensor
    rows: dict[str, slice]


class Runner:
    """`group`: the ranks over which `tensor_parallel` has split the model. Each holds the keys and
    values of its own heads, and gets all ranks' logits: so all draw the same tokens, and plan the
    same next step, without communicating."""

    def __init__(
        self,
        model: Transformer,
        num_blocks: int,
        block_size: int,
        adapters: Adapters | None = None,
        group: Group | None = None,
    ) -> None:
        check_servable(model)
        self.model, self.adapters, self.group = model, adapters, group
        if model.sequence_ranks > 1:
            raise InputError("ranks cannot share a token: tensor_parallel(model, group) as it is")
        self.sizes = num_blocks, block_size, 1 if group is None else group.size
        self.weights = Weights(model)
        self._begin()

    @torch.inference_mode(False)  # tensors made within are also writable outside of it
    def _begin(self) -> None:
        """Makes cache and head for the current weights, on their device and in their dtype."""
        self.head = Head(self.model)
        self.cache = PagedCache.of(self.model, *self.sizes)

    def begin_anew(self, closely: bool) -> bool:
        """Drops the cache's contents if the weights have changed since the last call."""
        changed = self.weights.changed(closely)
        if closely and self.group is not None:  # all ranks plan the same steps
            any_rank = torch.tensor([float(changed)], device=self.group.device)
            changed = bool(self.group.all_reduce(any_rank, "max"))
        if changed:
            del self.cache  # before another one is made
            self._begin()
        return changed

    def run_apart(self, plan: Plan) -> tuple[Pass | None, dict[str, Exception]]:
        """After a failed pass: runs each request by itself, and returns by id those that fail
        again. What the first pass wrote is overwritten; None if all fail."""
        passes, failed = [], {}
        for work in plan.work:
            try:
                passes.append(self.run(Plan([work], plan.copies if work is plan.work[0] else [])))
            except Exception as error:
                failed[work.request.id] = error
        if not passes:
            return None, failed
        rows, row = {}, 0
        for one in passes:
            rows |= {id: slice(row, row + len(one.hidden)) for id in one.rows}
            row += len(one.hidden)
        logits, hidden = (torch.cat(z) for z in zip(*((p.logits, p.hidden) for p in passes)))
        return Pass([w for p in passes for w in p.sampled], logits, hidden, rows), failed

    @torch.no_grad()
    def run(self, plan: Plan) -> Pass:
        ordered = sorted(plan.work, key=lambda work: batching_order(work.part))
        self.cache.copy(plan.copies)
        reader = self.cache.reader([work.part for work in ordered])
        device = self.cache.keys.device
        tokens = torch.tensor([t for work in ordered for t in work.tokens], device=device)
        adapters = [work.request.adapter for work in ordered for _ in range(work.count)]
        with self._rows(adapters):
            hidden = forward_new(self.model, tokens[:, None], reader)  # (N, 1, D)
        sampled, rows, row, where = [], [], 0, {}
        for work in ordered:
            where[work.request.id] = slice(row, row + work.count)
            row += work.count
            if work.samples:
                sampled.append(work)
                rows += range(row - work.samples, row)
        with self._rows([adapters[row] for row in rows]):
            logits = self.head(hidden[rows])[:, 0]  # (M, V), or (M, V/N) of a group
        return Pass(sampled, self._of_all_ranks(logits), hidden[:, 0], where)

    def _of_all_ranks(self, logits: Tensor) -> Tensor:
        """logits (M, V/N) -> (M, V), without the last rank's padding columns."""
        if self.group is None or not len(logits):
            return logits
        gathered = logits.new_empty(self.group.size, *logits.shape)
        self.group.all_gather(gathered, logits.contiguous())
        whole = rearrange(gathered, "ranks m v -> m (ranks v)")
        return whole[:, : self.model.config.vocab_size]

    def _rows(self, names: Sequence[str | None]) -> AbstractContextManager[None]:
        return nullcontext() if self.adapters is None else self.adapters.rows(names)


class Head:
    """hidden (..., D) -> logits (..., V), as `model.head`: a plain float32 linear layer on a CPU
    uses the packed weight, any other (adapted, quantized, split over ranks) is called as it is."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._of: tuple[int, int] | None = None  # the weight's address and version
        self._blocks: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        head = self.model.head
        if not can_be_laid_out(head):
            return head(hidden)
        weight = head.weight
        if self._of != (weight.data_ptr(), weight._version):  # new, or trained in the meantime
            self._of = weight.data_ptr(), weight._version
            self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), FEW)
        return torch.ops.mkldnn._linear_pointwise(hidden, self._blocks, head.bias, "none", [], "")


def can_be_laid_out(head: nn.Module) -> bool:
    """True if oneDNN takes the layer, in float32: results then only differ by summation
    order."""
    if type(head) is not nn.Linear or head.weight.dtype != torch.float32:
        return False
    if head._forward_hooks or head._forward_pre_hooks or head.weight.is_inference():
        return False
    return head.weight.device.type == "cpu" and torch.backends.mkldnn.is_available()


class Weights:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._remember(*state_of(model))

    def changed(self, closely: bool) -> bool:
        """True if the weights changed; `closely`: compares values too. InputError for dropout."""
        seen, tensors = state_of(self.model)
        changed = seen != self.seen or (closely and self._numbers_differ())
        if changed:
            self._remember(seen, tensors)
        if not self.certain:
            check_certain(self.model)
            self.certain = True
        return changed

    def _remember(self, seen: list[object], tensors: list[Tensor]) -> None:
        """The samples are views that keep the old weights alive: no other tensor can reuse their
        address before the next check."""
        self.seen, self.certain = seen, False
        self.samples: dict[object, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            if tensor.is_contiguous() and not tensor.is_meta:
                step = tensor.numel() // SAMPLES | 1  # odd: avoids sampling one column only
                view = tensor.detach().view(-1)[::step]
                self.samples[tensor.dtype, tensor.device].append(view)
        self.numbers = self._read()

    def _read(self) -> list[Tensor]:
        return [torch.cat(views).view(torch.uint8) for views in self.samples.values()]

    def _numbers_differ(self) -> bool:
        return not all(map(torch.equal, self.numbers, self._read()))


def state_of(model: nn.Module) -> tuple[list[object], list[Tensor]]:
    """A comparable state of the weights, made without reading their values, and the tensors."""
    modules, known = [model], {model}
    seen: list[object] = []
    tensors: list[Tensor] = []
    for module in modules:  # the list grows during the loop
        own = module.__dict__
        seen.append(module)
        seen += [value for value in own.values() if type(value) in (bool, float)]
        seen += own["_forward_hooks"]
        seen += own["_forward_pre_hooks"]
        held = [*own["_parameters"].values(), *own["_buffers"].values()]
        tensors += [tensor for tensor in held if tensor is not None]
        inside = [m for m in own["_modules"].values() if m is not None and m not in known]
        modules += inside
        known.update(inside)
    for tensor in tensors:
        seen.append(tensor.data_ptr())
        seen.append(0 if tensor.is_inference() else tensor._version)
    return seen, tensors


def check_certain(model: nn.Module) -> None:
    """InputError for a model with active dropout, whose answers would be random."""
    for path, module in model.named_modules():
        name = "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout"
        p = getattr(module, name, 0)
        if module.training and isinstance(p, float) and p > 0:
            raise InputError(
                f"{path} is in training mode and drops {p:.0%} of its numbers at random: serve the "
                "model after model.eval()"
            )
