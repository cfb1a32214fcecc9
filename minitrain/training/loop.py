"""The training loop: draw a batch, weight every token equally, step, report, until time is up.

    for each step:  count the targets of all microbatches on all ranks   (a small all-reduce)
                    forward, backward, forward, backward, …            (gradients add up in float32)
                    average over ranks · clip · AdamW at warmup_cosine(step)
Cost: 6 P FLOPs a token and 16 P bytes (weight, gradient, two moments), plus the activations of one
microbatch. Lab: e01. Shapes: B batch  T tokens  V vocabulary  N ranks  P parameters.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError, check_whole
from minitrain.model.experts.moe import set_step, update_biases
from minitrain.optimizers.adamw import adamw
from minitrain.optimizers.groups import clip_by_global_norm
from minitrain.optimizers.learning_rate import warmup_cosine
from minitrain.precision.loss_scaling import LossScaler
from minitrain.training.loss import IGNORED, token_weighted_loss
from minitrain.training.state import TrainState

Accept = Callable[[float, float], bool]  # loss, gradient norm -> whether to take the step
SMALLEST_SCALE = 2.0**-14  # gradients that overflow below this scale are themselves infinite


@dataclass(frozen=True)
class TrainConfig:
    """Training settings. Give `steps`, or `seconds`; rates are fractions where they say so.

    `lr` is the peak of the optimizer's group with the highest rate; others keep their ratio to it.
    """

    steps: int | None = None
    seconds: float | None = None
    lr: float = 4e-3
    final_lr: float = 0.0  # fraction of lr
    warmup: float = 0.05  # fraction of the run
    accumulate: int = 1  # microbatches a step
    clip: float = 1.0
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise InputError(
                f"give steps or seconds, one of them, not {self.steps} and {self.seconds}"
            )
        for name in ("steps", "accumulate"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        for name in ("seconds", "lr", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}: it must be more than 0")
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise InputError(f"autocast is {self.autocast}: give torch.bfloat16, float16 or None")
        if not 0 <= self.warmup < 1 or not 0 <= self.final_lr <= 1:
            raise InputError(f"warmup={self.warmup}, final_lr={self.final_lr}: fractions, 0 to 1")

    def total_steps(self, step: int, elapsed: float) -> float:
        """The number of steps of the run: as given, or as many as fit into `seconds` at this speed.

        With a time limit, step / total is then elapsed / seconds: the cosine ends when time is up.
        The first step measures the speed; its rate is 0, since its total is infinite.
        """
        if self.steps is not None:
            return self.steps
        return step * self.seconds / elapsed if step else math.inf


@dataclass(frozen=True)
class Peers:
    """The part of a step that involves other ranks. The default is one rank, alone."""

    size: int = 1
    all_reduce: Callable[[Tensor], object] = lambda tensor: tensor  # sums in place over ranks
    synchronize: Callable[[], object] = lambda: None  # after backward: averages the gradients
    no_sync: Callable[[], AbstractContextManager] = nullcontext  # a backward without communication
    clip: Callable[[Sequence[nn.Parameter], float], Tensor] = clip_by_global_norm


ALONE = Peers()
Begin = Callable[[str], object]  # called with the name of each part of a step as it begins


def _no_clock(part: str) -> None:
    pass


@dataclass(frozen=True)
class StepResult:
    loss: float  # nats per token, mean over the step's tokens on all ranks
    grad_norm: float  # before clipping
    tokens: int  # counted targets, on all ranks
    skipped: bool = False  # the weights did not change: the gradients overflowed,
    refused: bool = False  # or `accept` refused the step


class Diverged(InputError):
    """A loss or a gradient norm that is not finite; the step was already taken."""

    def __init__(self, message: str, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(message)
        self.step, self.loss, self.grad_norm = step, loss, grad_norm


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    microbatches: Sequence[Any],
    clip: float = 1.0,
    autocast: torch.dtype | None = None,
    peers: Peers = ALONE,
    scaler: LossScaler | None = None,
    accept: Accept | None = None,
    begin: Begin = _no_clock,
) -> StepResult:
    """One optimizer step over `microbatches`, equal to one over a single batch of all of them.

    `model(tokens, documents, positions)` returns logits (B, T, V), as `Transformer` does.
    Parameters, and so gradients and their sum over microbatches, are float32; `autocast` runs the
    matmuls in another dtype. With a `scaler`, a step whose gradients overflow is skipped; so is one
    that `accept(loss, grad_norm)` refuses, which all ranks call with the same numbers. `begin`
    is called with each part: "forward", "backward" of each microbatch, "average", "optimizer".
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("no parameter of this model trains: set requires_grad on some of them")
    device = parameters[0].device
    sizes = torch.stack([sizes_of(batch) for batch in microbatches]).sum(dim=0)  # (2,)
    peers.all_reduce(sizes)
    tokens, places = sizes
    # The ranks' average of N x share is the sum of shares.
    factor = peers.size * (scaler.scale if scaler else 1.0)
    set_step(model, places, scale=factor)
    loss = torch.zeros((), device=device)
    for index, batch in enumerate(microbatches):
        last = index == len(microbatches) - 1
        with nullcontext() if last else peers.no_sync():
            begin("forward")
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
            share = token_weighted_loss(logits, batch.targets, tokens)
            begin("backward")
            (share * factor).backward()
        loss = loss + share.detach()
    begin("average")
    peers.synchronize()
    peers.all_reduce(loss)
    finite = scaler.unscale(parameters, peers.all_reduce) if scaler else True
    grad_norm = peers.clip(parameters, clip)
    _counted(tokens.item(), "in this step")
    taken = finite and (accept is None or accept(loss.item(), grad_norm.item()))
    begin("optimizer")
    if taken:
        optimizer.step()
        update_biases(model, peers.all_reduce)
    if scaler:
        scaler.update(finite)
    optimizer.zero_grad(set_to_none=True)
    refused = finite and not taken
    return StepResult(loss.item(), grad_norm.item(), int(tokens), not taken, refused)


def sizes_of(batch: Any) -> Tensor:
    """(2,): counted targets, and all positions."""
    counts = batch.targets != IGNORED
    return torch.stack([counts.sum(), torch.ones_like(counts).sum()])


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    autocast: torch.dtype | None = None,
    peers: Peers = ALONE,
) -> float:
    """Nats per token over `batches` (of all N ranks), every token weighted equally; runs in eval
    mode, then restores each module's mode."""
    device = next(model.parameters()).device
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # summed loss, tokens
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(device)
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
            totals += torch.stack(
                [token_weighted_loss(logits, batch.targets, 1), (batch.targets != IGNORED).sum()]
            )
    finally:
        for module in training:
            module.training = True
    peers.all_reduce(totals)
    loss, tokens = totals.tolist()
    return loss / _counted(tokens, "to evaluate on")


def _counted(tokens: float, where: str) -> float:
    if not tokens:
        raise InputError(
            f"there is no target {where}: give batches in which some are not {IGNORED}"
        )
    return tokens


@dataclass(frozen=True)
class StepRecord:
    """The record that a callback gets after each step."""

    step: int  # steps done, this one included
    total_steps: float  # an estimate under a time limit
    tokens: int  # seen by the run so far
    seconds: float  # training time before the step, the same on all ranks
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float  # of this step alone
    skipped: int = 0  # steps of this call skipped so far

    @property
    def progress(self) -> float:
        """The fraction of the run that is done: 0 to 1, the same on all ranks."""
        return min(1.0, self.step / self.total_steps)


@dataclass
class TrainResult:
    state: TrainState
    losses: list[float] = field(default_factory=list)  # of each step of this call
    tokens_per_second: float = 0.0  # median over the steps of this call
    interrupted: bool = False
    skipped: int = 0  # steps that overflowed under loss scaling


def train(
    model: nn.Module,
    loader: Any,
    config: TrainConfig,
    callbacks: Sequence[Callable[[StepRecord], object]] = (),
    peers: Peers = ALONE,
    state: TrainState | None = None,
    step: Callable[[Sequence[Any]], StepResult] | None = None,
    stop: Callable[[], bool] = lambda: False,
    now: Callable[[], float] = time.perf_counter,
    accept: Accept | None = None,
    begin: Begin = _no_clock,
) -> TrainResult:
    """Trains until `config.steps` or `config.seconds` are reached, or `stop()` is true on any rank.

    `peers`: the other ranks, and how gradients are averaged over them. `state`: the state of a
    resumed run (its model is the one inside a wrapper such as DDP). `step`: replaces `train_step`,
    called with this rank's microbatches; `peers` then only agree on time and on stopping.
    `accept`: called before each step of `train_step`, such as reliability's SpikeGuard. `begin`:
    called with each part of a step as it begins, such as `measure.parts.Parts().begin`.
    Raises Diverged, an InputError, if the loss is not finite.
    """
    if step is not None and accept is not None:
        raise InputError("accept is asked by train_step: a step of your own asks it itself")
    state = state or _fresh_state(model, loader, config)
    _keep_ratios(state.optimizer.param_groups)
    device = next(model.parameters()).device
    settings = (config.clip, config.autocast, peers, state.scaler, accept, begin)
    step = step or (lambda batches: train_step(model, state.optimizer, batches, *settings))
    batches, result, speeds = _endless(loader), TrainResult(state), []
    began = now() - state.seconds
    while True:
        elapsed, result.interrupted = _agree(peers, device, now() - began, stop())
        total = config.total_steps(state.step, elapsed)
        if result.interrupted or state.step >= total:
            break
        lr = _set_rate(state, config, total)
        start = now()
        begin("data")
        microbatches = [next(batches).to(device) for _ in range(config.accumulate)]
        begin("step")
        made = step(microbatches)
        begin("between")
        _check_finite(made, state, lr)
        speed = made.tokens / (now() - start)
        state.tokens, state.seconds = state.tokens + made.tokens, now() - began
        result.skipped += made.skipped
        if made.skipped:
            continue  # the schedule does not advance either
        state.step += 1
        result.losses.append(made.loss)
        speeds.append(speed)
        record = StepRecord(
            step=state.step,
            total_steps=total,
            tokens=state.tokens,
            seconds=elapsed,
            loss=made.loss,
            lr=lr,
            grad_norm=made.grad_norm,
            tokens_per_second=speed,
            skipped=result.skipped,
        )
        for callback in callbacks:
            callback(record)
    result.tokens_per_second = statistics.median(speeds) if speeds else 0.0
    return result


def _fresh_state(model: nn.Module, loader: Any, config: TrainConfig) -> TrainState:
    return TrainState(model, adamw(model, config.lr, config.weight_decay, config.betas), loader)


def _keep_ratios(groups: Sequence[dict[str, Any]]) -> None:
    """Notes each group's rate as a fraction of the largest, since the schedule overwrites rates;
    resumed groups have theirs."""
    largest = max(group["lr"] for group in groups)
    for group in groups:
        group.setdefault("lr_scale", float(group["lr"] / largest) if largest else 1.0)


def _set_rate(state: TrainState, config: TrainConfig, total: float) -> float:
    floor = config.lr * config.final_lr
    lr = warmup_cosine(state.step, total, config.warmup * total, config.lr, floor)
    for group in state.optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
    return lr


def _agree(peers: Peers, device: torch.device, elapsed: float, stop: bool) -> tuple[float, bool]:
    """The mean of the ranks' clocks, and whether any wants to stop, the same on all ranks."""
    shared = torch.tensor([elapsed, float(stop)], dtype=torch.float64, device=device)
    peers.all_reduce(shared)
    total, stops = shared.tolist()
    return total / peers.size, stops > 0


def _check_finite(step: StepResult, state: TrainState, lr: float) -> None:
    """Raises Diverged; a skipped step may have infinite gradients while the scale can shrink."""
    if step.refused:
        return
    overflown = step.skipped and state.scaler.scale >= SMALLEST_SCALE
    if not math.isfinite(step.loss) or not (overflown or math.isfinite(step.grad_norm)):
        raise Diverged(
            f"the loss of step {state.step + 1} is {step.loss}, its gradient norm {step.grad_norm}:"
            f" the run diverged at learning rate {lr:.1e}; start again with {lr / 4:.1e} or less",
            state.step + 1,
            step.loss,
            step.grad_norm,
        )


def _endless(loader: Any) -> Iterator[Any]:
    """Yields epoch after epoch; the loader itself tracks its position."""
    while True:
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise InputError(
                "the loader gives no batch, from the start or in its second epoch: give one with "
                "rows, which can be iterated again, as a list or a Loader can, and a generator not"
            )
