"""ZeRO: data parallelism without redundant copies: each rank keeps only the state it updates.

P parameters, N ranks; bytes held per rank, in mixed precision (bfloat16, AdamW in float32) and all
in float32; traffic sent, in units of P elements:

                                    mixed           float32      sends
    DDP                             16 P            16 P         2     all-reduce
    stage 1  optimizer state        4 P + 12 P/N    8 P + 8 P/N  2     reduce-scatter, all-gather
    stage 2  and gradients          2 P + 14 P/N    4 P + 12 P/N 2     the same
    stage 3  and parameters         16 P/N          16 P/N       3     one gather more: stage_3.py

    compute   |- backward 3 -|- backward 2 -|- backward 1 -|·|- step 3 -|- step 2 -|- step 1 -|·|
    link                     |-- reduce 3 --|-- reduce 2 --|-|          |gather 3  |gather 2  |-|

This file has stages 1 and 2, and the base shared with stage 3: when a unit's gradients are
reduced, and who sees them. Paper: Rajbhandari et al. 2020, "ZeRO", table 1 (stage 3 keeps float32
shards and no bfloat16 ones: 14 P/N). Lab: e03. Shapes: S elements of a unit (unit.py)  N ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from minitrain.errors import InputError
from minitrain.optimizers.groups import clip_factor
from minitrain.parallel.ddp import BUCKET_BYTES, broadcast_parameters, bucket_groups, trainable
from minitrain.parallel.zero.guards import elementwise_only, not_wrapped, twin
from minitrain.parallel.zero.norm import global_norm
from minitrain.parallel.zero.unit import Unit
from minitrain.ranks.group import Group
from minitrain.training.loop import Peers


class Sharded(nn.Module):
    """The base of all stages: units whose gradients are reduced to shards while backward runs.

    A hook moves each gradient into its unit; once a unit has all, and all earlier units are in
    flight, its reduce-scatter starts. At most two units hold gradients in full: one fills, one is
    sent. Units are sent in the same order on every rank, whatever the order of the hooks.
    `parameters()` are this rank's pieces; pass these to the optimizer, torch's own or ours
    (optimizer.py); the model's own have no `.grad`. A trained parameter that no rank has used gets
    a zero gradient, as in ddp.py, so AdamW still decays it (FSDP2 leaves it alone): telling it from
    one that only this rank has not used would need communication.
    Freeze it before wrapping, or put it in a group without weight decay.
    """

    def __init__(self, model: nn.Module, group: Group, units: Sequence[Unit], stage: int) -> None:
        super().__init__()
        self.module, self.group, self.units, self.stage = model, group, list(units), stage
        self.trained = [unit for unit in units if unit.trains]
        self.piece_of = {
            parameter: unit.pieces[name].weight
            for unit in units
            for name, parameter in unit.parameters.items()
        }
        self.unit_of = {p: unit for unit in self.trained for p in unit.places}
        self.trains = {p: p.requires_grad for p in model.parameters()}
        self.order = self.trained  # in which units are reduced
        self.synchronize = True
        self.unfinished = False  # a backward is pending whose gradients must be reduced
        self.unsent = False  # a backward under no_sync has left gradients on this rank
        self.in_backward = False
        self.issued = 0  # reduce-scatters started
        self.held = False  # all units stay gathered
        for parameter in self.unit_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)
        self.known_optimizers: weakref.WeakSet = weakref.WeakSet()  # checked to be element-wise
        self.own_optimizers: weakref.WeakSet = weakref.WeakSet()  # ours, which do all this
        self._follow_steps()

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's pieces, under the names that DDP gives: "module.embed.weight".

        Stages 1 and 2 leave parameters frozen before wrapping as they are.
        """
        inside = f"{prefix}.module" if prefix else "module"
        for name, parameter in self.module.named_parameters(inside, recurse, remove_duplicate):
            if parameter not in self.trains:
                raise InputError(f"{name} was added after wrapping: add it first, then wrap")
            yield name, self.piece_of.get(parameter, parameter)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        for unit in self.trained:
            unit.drop_zeroed()
        self.unfinished |= torch.is_grad_enabled() and self.synchronize
        return self.module(*inputs, **named_inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward adds up whole gradients and sends nothing: fewer bytes, more memory."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before

    def finish(self) -> None:
        """Reduces the remaining units and waits. Backward calls it; calling it again is free.

        Call it yourself if a rank may have no gradient at all.
        """
        if self.synchronize and self.unfinished:
            for unit in self.order:
                unit.missing.clear()
            self._issue_ready()
            for unit in self.order[-1:]:
                unit.finish_reduce()
            self.unfinished = self.unsent = False
        for unit in self.trained:
            unit.reset()
        self.in_backward, self.issued = False, 0

    @contextmanager
    def gathered(self) -> Iterator[nn.Module]:
        """Makes the model whole inside the block: to generate, to print, to save. All ranks enter
        together; what they write to its weights must be the same on all, and is kept."""
        if self.held:
            yield self.module
            return
        for unit in self.units:
            unit.start_gather()
        for unit in self.units:
            unit.gather()
        self.held = True
        try:
            yield self.module
        finally:
            self.held = False
            for unit in self.units:
                unit.keep_changes()
                if self.stage == 3:
                    unit.free()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales all ranks' gradients by one factor to norm `max_norm`; returns the old norm.

        The shards do not overlap, so every element counts once.
        """
        norm = global_norm(self.group, self.trained, list(self.module.parameters()))
        for unit in self.trained:
            unit.scale_gradient(clip_factor(norm, max_norm))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        for unit in self.trained:
            unit.forget_gradient()
        self.unsent = False

    def peers(self) -> Peers:
        """For `train_step`: reduces after each microbatch, in stage 1 only after the last one."""
        no_sync = self.no_sync if self.stage == 1 else nullcontext
        clip = lambda _, limit: self.clip_grad_norm_(limit)  # noqa: E731
        return Peers(self.group.size, self.group.all_reduce, self.finish, no_sync, clip)

    def check_step(self) -> None:
        """Raises InputError if a step would omit gradients, or update parameters frozen since."""
        if self.unsent:
            raise InputError(
                "every microbatch was under no_sync, so that no rank has seen the others' "
                "gradients: leave the last one out of it"
            )
        with torch._C.DisableTorchFunctionSubclass():  # a freed weight answers more slowly
            changed = [p for p, trains in self.trains.items() if p.requires_grad != trains]
        if changed:
            raise InputError(
                f"requires_grad of {len(changed)} parameters was changed after wrapping, which cut "
                "the trained ones: freeze before wrapping"
            )

    def updated(self, unit: Unit) -> None:
        """Called after the unit's shard changed: stages 1 and 2 send it to all ranks at once."""
        unit.free()
        if self.stage < 3 or self.held:
            unit.start_gather()

    def overwrite(self, unit: Unit, shard: Tensor) -> None:
        """Writes new values, (S/N,), to this rank's part of the unit."""
        unit.shard_shelf.get()
        unit.shard.copy_(shard)
        unit.depart()
        self.updated(unit)

    def settle(self) -> None:
        """Waits after a step until all shards in flight have arrived."""
        for unit in self.units:
            if self.stage < 3 or self.held:
                unit.gather()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(
                f"the wrapper has no .{name}: the model, with all that it can do, is zero.module, "
                "and whole for it in `with zero.gathered():`"
            ) from None

    def __deepcopy__(self, memo: dict) -> NoReturn:
        raise InputError(
            "a wrapped model cannot be copied, for a copy would have no ranks to send to: copy its "
            "weights, full_state_dict(zero), and load them into a model that you build anew"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        raise InputError(
            "a wrapped model stays on its device and in its dtype: call .to() before you wrap it"
        )

    # ---- torch's own optimizers, on the pieces ----

    def _follow_steps(self) -> None:
        """Registers `_before_step` and `_after_step` around every torch optimizer's `step`, for the
        lifetime of this wrapper."""
        for register, method in (
            (register_optimizer_step_pre_hook, Sharded._before_step),
            (register_optimizer_step_post_hook, Sharded._after_step),
        ):
            handle = register(partial(_call, weakref.ref(self), method))
            weakref.finalize(self, handle.remove)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises InputError for an optimizer that would update nothing, or update it wrongly."""
        parameters = _parameters(optimizer)
        if not parameters.isdisjoint(self.piece_of):
            raise InputError(
                f"this {type(optimizer).__name__} has the model's own parameters, whose gradients "
                "ZeRO takes away: build it after wrapping, on zero.parameters()"
            )
        if parameters.isdisjoint(self.piece_of.values()):
            return
        self.check_step()
        if optimizer not in self.known_optimizers:
            elementwise_only(partial(twin, optimizer), self.group.device)
            self.known_optimizers.add(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Sends the updated shards to the other ranks."""
        moved = _parameters(optimizer)
        for unit in self.trained:
            if any(piece.weight in moved for piece in unit.pieces.values()):
                self.updated(unit)
        self.settle()

    # ---- backward ----

    def _accumulated(self, parameter: nn.Parameter) -> None:
        self._begin_backward()
        self.unit_of[parameter].missing.discard(parameter)
        if self.synchronize:
            self._issue_ready()

    def _begin_backward(self) -> None:
        if not self.in_backward:
            self.in_backward, self.unfinished = True, self.synchronize
            self.unsent |= not self.synchronize
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _issue_ready(self) -> None:
        while self.issued < len(self.order) and not self.order[self.issued].missing:
            if self.issued:
                self.order[self.issued - 1].finish_reduce()
            self.order[self.issued].start_reduce()
            self.issued += 1


class Zero(Sharded):
    """Stages 1 and 2: the parameters stay whole. A model in bfloat16 gets float32 shards.

    Both reduce alike; stage 1 keeps the buffers of all gradients, so that microbatches under
    `no_sync` cost no extra memory, and stage 2 frees each once its owner has its part: two are
    held at a time. By default a bucket is an eighth of the model, from 2 MB to DDP's 25. Before
    wrapping, freeze what no forward uses, or AdamW decays it (`Sharded` says why).
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        stage: int = 2,
        bucket_bytes: int | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        if stage not in (1, 2):
            raise InputError(f"stage {stage!r}: Zero is stage 1 or 2; Zero3 is stage 3")
        not_wrapped(model)
        broadcast_parameters(group, model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        eighth = sum(p.nbytes for p in trainable(model)) // 8
        usual = min(BUCKET_BYTES, max(2 * 2**20, eighth))
        buckets = bucket_groups(model, usual if bucket_bytes is None else bucket_bytes)
        units = [
            Unit({names[p]: p for p in bucket}, group, stage, reduce_dtype=reduce_dtype)
            for bucket in buckets
        ]
        super().__init__(model, group, units, stage)
        model.register_load_state_dict_post_hook(self._loaded)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        for unit in self.units:
            unit.check_place()
        return super().forward(*inputs, **named_inputs)

    def _loaded(self, model: nn.Module, keys: Any) -> None:
        """Updates the shards after `model.load_state_dict` has written the parameters."""
        for unit in self.units:
            unit.keep_changes()


def _call(
    wrapper: weakref.ref, method: Callable, optimizer: torch.optim.Optimizer, *_: Any
) -> None:
    zero = wrapper()
    if zero is not None and optimizer not in zero.own_optimizers:
        method(zero, optimizer)


def _parameters(optimizer: torch.optim.Optimizer) -> set[nn.Parameter]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}
