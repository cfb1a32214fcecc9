"""The part shared by ZeRO's three stages: when a unit's gradients are reduced, and who sees them.

    backward   |- layer 3 -|- layer 2 -|- layer 1 -|·|      reduce a unit when it is complete,
    link                   |- reduce 3 -|- reduce 2 -|      while the next one is computed

Lab: e03. Shapes: S elements of a unit (unit.py)  N ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.optimizers.groups import clip_factor
from minitrain.parallel.zero.norm import global_norm
from minitrain.parallel.zero.unit import Unit
from minitrain.ranks.group import Group
from minitrain.training.loop import Peers


class Sharded(nn.Module):
    """The base of all stages: units whose gradients are reduced to shards while backward runs.

    A hook moves each gradient into its unit; when a unit has all, and all units before it are on
    their way, its reduce-scatter starts. At most two units hold gradients in full: one fills, one
    is sent. Units leave in the same order on every rank, whatever the order of the hooks.
    `parameters()` are this rank's pieces, and those an optimizer takes, torch's own or ours
    (optimizer.py); the model's own have no `.grad`. A trained parameter that no rank has used gets
    a gradient of zeros, as in ddp.py, by which AdamW still decays it (FSDP2 leaves it alone): to
    know it from one that only this rank has not used, the ranks would have to ask one another.
    Freeze it before wrapping, or give it a group without weight decay.
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
        self.unfinished = False  # a backward is due whose gradients must be reduced
        self.unsent = False  # a backward under no_sync has left gradients on this rank
        self.in_backward = False
        self.issued = 0  # reduce-scatters started
        self.held = False  # all units stay gathered
        for parameter in self.unit_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's pieces, under the names that DDP gives: "module.embed.weight".

        What was frozen before wrapping, stages 1 and 2 leave as it is.
        """
        inside = f"{prefix}.module" if prefix else "module"
        for name, parameter in self.module.named_parameters(inside, recurse, remove_duplicate):
            yield name, self.piece_of.get(parameter, parameter)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        for unit in self.trained:
            unit.drop_zeroed()
        self.unfinished |= torch.is_grad_enabled() and self.synchronize
        return self.module(*inputs, **named_inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here adds up whole gradients and sends nothing: fewer bytes, more memory."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before

    def finish(self) -> None:
        """Reduces what is left and waits. The end of backward calls it; twice is as good as once.

        Call it yourself where a rank may have no gradient at all.
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
        """In here the model is whole: to generate, to print, to save. All ranks enter it together,
        and what they write to its weights, alike on all, stays."""
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
        """Scales all ranks' gradients by one factor to the length `max_norm`; returns that before.

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
        """For `train_step`: each microbatch is reduced as it ends, in stage 1 only the last one."""
        no_sync = self.no_sync if self.stage == 1 else nullcontext
        clip = lambda _, limit: self.clip_grad_norm_(limit)  # noqa: E731
        return Peers(self.group.size, self.group.all_reduce, self.finish, no_sync, clip)

    def check_step(self) -> None:
        """InputError where a step would leave out gradients, or move what is frozen by now."""
        if self.unsent:
            raise InputError(
                "every microbatch was under no_sync, so that no rank has seen the others' "
                "gradients: leave the last one out of it"
            )
        with torch._C.DisableTorchFunctionSubclass():  # a freed weight takes longer to answer
            changed = [p for p, trains in self.trains.items() if p.requires_grad != trains]
        if changed:
            raise InputError(
                f"requires_grad of {len(changed)} parameters was changed after wrapping, which cut "
                "the trained ones: freeze before wrapping"
            )

    def updated(self, unit: Unit) -> None:
        """The optimizer has moved the unit's shard; in stages 1 and 2 it sets out to all ranks."""
        unit.free()
        if self.stage < 3 or self.held:
            unit.start_gather()

    def overwrite(self, unit: Unit, shard: Tensor) -> None:
        """New values, (S/N,), for this rank's part of the unit."""
        unit.shard_shelf.get()
        unit.shard.copy_(shard)
        unit.depart()
        self.updated(unit)

    def settle(self) -> None:
        """After a step: what set out has arrived."""
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
