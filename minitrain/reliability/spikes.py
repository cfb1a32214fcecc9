"""Loss and gradient spikes: the step is skipped; if they persist, the run rolls back.

    loss     2.1 2.0 2.1 9.7 2.0 …                    skipped: the batch was bad
    loss     2.1 2.0 7.9 8.4 9.0 │ back 100 steps │ 2.0 2.1 …      the weights were: rolled back

A spike is not finite, or more than z deviations above the running mean of loss or gradient norm.
After a rollback the run does not read the same batches again: PaLM skipped 200 to 500 of them; the
same batches did no harm elsewhere: a spike needs both that state and that data (arXiv 2204.02311,
5.1). The running mean and z are ZClip's (arXiv 2504.02507: 0.97 and 2.5, after 25 steps), which
clips instead. Every rank sees the same loss and norm, and so decides the same.
Cost: 24 bytes a parameter.

After averaging, all ranks have the NaN, or the spike, of one; its own norm identifies it:

    rank 0   own gradient, norm 0.9  ┐ average   nan
    rank 1   own gradient, norm nan  ┘           nan      -> rank 1

Each parameter's own gradient is measured as backward computes it, before it is sent. Ranks compare
only if a step is refused: 8 bytes a rank. Cost: one pass over the gradients. Lab: e12.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.ranks.group import Group
from minitrain.reliability.checkpoint.contents import (
    ALONE,
    Layout,
    extra_states,
    fill_extra,
    whole_layout,
)
from minitrain.reliability.events import EventLog
from minitrain.training.state import TrainState


@dataclass
class Running:
    """Exponential mean and variance of a series, over about the last 1 / (1 - alpha) values."""

    alpha: float = 0.97
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def z(self, value: float) -> float:
        """Deviations above the mean; for a constant series the deviation is a small one."""
        deviation = max(math.sqrt(self.variance), 1e-3 * abs(self.mean), 1e-12)
        return (value - self.mean) / deviation

    def add(self, value: float) -> None:
        self.count += 1
        keep = min(self.alpha, 1 - 1 / self.count)  # a plain mean at first
        far = value - self.mean
        self.mean += (1 - keep) * far
        self.variance = keep * (self.variance + (1 - keep) * far * far)


@dataclass
class SpikeGuard:
    """`train(accept=SpikeGuard(state, …))`: called with loss and gradient norm before each step.

    z: deviations; the first `warmup` steps are taken, unless they are not finite. After `patience`
    skipped steps in a row it goes back to a copy at least `back` steps old, at most `most` times.
    `layout`: of the model's parts, as for a checkpoint. `whose`: called on all ranks, returns those
    to log for a skipped step, such as `OwnNorms(model, group).out_of_line`.
    `went_back`: called on all ranks after the rollback, to save the state: this removes newer
    checkpoints, and a run that is killed resumes from here.
    """

    state: TrainState
    log: EventLog | None = None
    z: float = 6.0
    warmup: int = 25
    patience: int = 3
    back: int = 20
    most: int = 5
    layout: Layout = field(default_factory=whole_layout)
    whose: Callable[[], list[int]] | None = None
    went_back: Callable[[], object] = lambda: None
    loss: Running = field(default_factory=Running)
    norm: Running = field(default_factory=Running)
    skipped: int = 0  # in a row
    rollbacks: int = 0
    copies: list[dict[str, Any]] = field(default_factory=list)  # of the state, oldest first

    def __post_init__(self) -> None:
        if not self.z > 0 or min(self.warmup, self.patience, self.back) < 1:
            raise InputError(
                f"z={self.z}, warmup={self.warmup}, patience={self.patience}, back={self.back}: "
                "give numbers over 0, such as 6, 25, 3 and 20"
            )

    def __call__(self, loss: float, grad_norm: float) -> bool:
        """True if the step is to be taken. A rollback replaces the state."""
        if not self.copies or self.state.step - self.copies[-1]["step"] >= self.back:
            if self.skipped == 0:
                self.copies = [*self.copies[-1:], self._copy()]
        if self._is_in_line(loss, grad_norm):
            self.loss.add(loss)
            self.norm.add(grad_norm)
            self.skipped = 0
            return True
        self.skipped += 1
        ranks = {} if self.whose is None else {"ranks": self.whose()}
        self._note("skipped", loss=str(loss), grad_norm=str(grad_norm), **ranks)
        if self.skipped >= self.patience:
            self._go_back()
        return False

    def _is_in_line(self, loss: float, grad_norm: float) -> bool:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return False
        if self.loss.count < self.warmup:
            return True
        return self.loss.z(loss) <= self.z and self.norm.z(grad_norm) <= self.z

    def _go_back(self) -> None:
        if self.rollbacks == self.most:
            raise InputError(
                f"{self.most} times back from step {self.state.step}, and the loss still spikes: "
                "lower the learning rate, or look at the data"
            )
        self.rollbacks, self.skipped = self.rollbacks + 1, 0
        before, kept = self.state.step, self.copies[0]
        placed = self.layout(self.state, ALONE)
        # First: it waits until a background save has copied what is about to change.
        self.state.optimizer.load_state_dict(copy.deepcopy(kept["optimizer"]))
        with torch.no_grad():
            for (_, tensor), old in zip(placed.weights, kept["weights"]):
                tensor.copy_(old)
        placed.settle()
        fill_extra(self.state.extra, copy.deepcopy(kept["extra"]))
        self.state.step = kept["step"]  # the loader stays: other batches
        self.copies = [kept]
        self._note("rolled back", since=before)
        self.went_back()

    def _copy(self) -> dict[str, Any]:
        weights = self.layout(self.state, ALONE).weights
        return {
            "step": self.state.step,
            "weights": [tensor.detach().clone() for _, tensor in weights],
            "optimizer": copy.deepcopy(self.state.optimizer.state_dict()),
            "extra": copy.deepcopy(extra_states(self.state.extra)),
        }

    def _note(self, event: str, **details: Any) -> None:
        if self.log is not None and self.log.rank == 0:
            self.log.write(event, self.state.step, **details)


FACTOR = 3.0  # ranks with similar batches have similar norms


class OwnNorms:
    """This rank's gradient norm of the last backward, before the average over ranks.

    Create it before wrapping the model in DDP, whose hooks must come after these.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.group = group
        self.squares: dict[nn.Parameter, Tensor] = {}
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: nn.Parameter) -> None:
        self.squares[parameter] = parameter.grad.detach().double().square().sum()

    def out_of_line(self) -> list[int]:
        """Collective: the ranks whose gradient was not finite, or else far larger than others'."""
        group, squares = self.group, [*self.squares.values()]
        mine = torch.stack(squares).sum().sqrt() if squares else torch.zeros(())
        everyone = torch.empty(group.size, dtype=torch.float64, device=group.device)
        norms = group.all_gather(everyone, mine.double().reshape(1).to(group.device))
        return norms_out_of_line(norms.tolist())


def norms_out_of_line(norms: Sequence[float]) -> list[int]:
    """The ranks whose norm is not finite, or else far above the median; of two ranks, above the
    smaller. None if all are alike: then the weights were off, or every batch."""
    bad = [rank for rank, norm in enumerate(norms) if not math.isfinite(norm)]
    if bad:
        return bad
    usual = min(norms) if len(norms) == 2 else statistics.median(norms)
    return [rank for rank, norm in enumerate(norms) if norm > FACTOR * usual]
