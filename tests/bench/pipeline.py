"""Our pipeline against torch's: forward and backward of one step on 2 ranks, alternating.

The same stages, microbatches and loss for both, and torch's in its fastest form: outputs are not
collected. Before measuring, both must leave the same gradients. Time is the slowest rank's in a
repeat; bytes are the peak of any rank during a step, as `MemoryLedger` counts them for both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, TORCH, Case, Costs, Steps, in_turn, on_ranks
from minitrain.bench.steps import gradients, peak_bytes, random_text
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.parallel.pipeline.executor import Pipeline
from minitrain.parallel.pipeline.operations import Schedule
from minitrain.parallel.pipeline.plain import share_of_loss
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.stages import Stage, cut
from minitrain.ranks.group import Group
from minitrain.training.loss import token_weighted_loss

SCHEDULES = (("1f1b", 1), ("interleaved", 2))  # and chunks per rank
Shape = tuple[str, int, int, int]
SHAPE = ("3M", 8, 2, 128)  # preset, microbatches, rows in each, length
REASON = (
    "the matmuls and the messages are the same, so what is left is noise (see the spread) or "
    "Python around each operation"
)


def cases(repeats: int = 15, shape: Shape = SHAPE, ranks: int = 2) -> list[Case]:
    name, microbatches, rows, length = shape
    peer = f"torch.distributed.pipelining of {TORCH}"
    made = []
    for schedule, chunks in SCHEDULES:
        what = f"{schedule} {name}, {microbatches} x {rows} x {length}, {ranks} ranks"
        for unit, measured in (("seconds", step_seconds), ("bytes", step_bytes)):
            title = f"pipeline {'step' if unit == 'seconds' else 'peak'} {what}"
            measure = partial(on_ranks, measured, schedule, chunks, shape, repeats, ranks=ranks)
            made.append(Case(title, peer, measure, REASON, unit))
    return made


def step_seconds(group: Group, name: str, chunks: int, shape: Shape, repeats: int) -> Costs:
    """On each rank: both contenders' times, alternating."""
    _, steps = contenders(group, name, chunks, shape)
    return in_turn(group, steps, repeats)


def step_bytes(group: Group, name: str, chunks: int, shape: Shape, repeats: int) -> Costs:
    """On each rank: the most bytes held during a step of each; one repeat is enough."""
    models, steps = contenders(group, name, chunks, shape)
    peaks = {}
    for who, step in steps.items():
        peaks[who] = [float(peak_bytes(step, models[who]))]
        models[who].zero_grad()
    return peaks


def contenders(
    group: Group, name: str, chunks: int, shape: Shape
) -> tuple[dict[str, nn.Module], Steps]:
    """This rank's stages, twice, and a step of each contender, after checking for equal
    gradients."""
    preset_name, count, rows, length = shape
    schedule = make_schedule(name, group.size, count, chunks)
    stages = cut(build(preset(preset_name), device=group.device), schedule, group.rank)
    text = random_text(preset_name, count * rows, length, group.device)
    models = {OURS: nn.ModuleList(stages), PEER: nn.ModuleList(copy.deepcopy(stages))}
    steps = {
        OURS: our_step(group, schedule, models[OURS], text),
        PEER: peer_step(group, schedule, models[PEER], text),
    }
    for step in steps.values():
        step()
    left = [gradients(model) for model in models.values()]
    torch.testing.assert_close(*left, rtol=1e-3, atol=1e-6)
    return models, steps


def our_step(
    group: Group, schedule: Schedule, stages: nn.ModuleList, text: Tensor
) -> Callable[[], object]:
    batches = [
        SimpleNamespace(tokens=rows[:, :-1], targets=rows[:, 1:], documents=None, positions=None)
        for rows in text.chunk(schedule.microbatches)
    ]
    pipeline, loss = Pipeline(group, schedule, stages), share_of_loss(text[:, 1:].numel())

    def step() -> None:
        stages.zero_grad()
        pipeline.run(batches, loss)

    return step


class OneInput(nn.Module):
    """A stage as torch's pipelining calls it: with tokens, or with the previous stage's output."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        return self.stage(x, SimpleNamespace(tokens=x, documents=None, positions=None))


def peer_step(
    group: Group, schedule: Schedule, stages: nn.ModuleList, text: Tensor
) -> Callable[[], object]:
    """Torch's step, with losses already divided by the microbatches: nothing is scaled later."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    total = text[:, 1:].numel()
    parts = [
        PipelineStage(
            OneInput(stage), stage.index, schedule.stages, group.device, group=group.process_group
        )
        for stage in stages
    ]
    is_looped = schedule.chunks > 1
    theirs = (ScheduleInterleaved1F1B if is_looped else Schedule1F1B)(
        parts if is_looped else parts[0],
        schedule.microbatches,
        loss_fn=lambda logits, targets: token_weighted_loss(logits, targets, total),
        scale_grads=False,
    )
    arguments = [text[:, :-1]] if group.rank == 0 else []
    target = text[:, 1:] if group.rank == group.size - 1 else None

    def step() -> None:
        stages.zero_grad()
        theirs.step(*arguments, target=target, return_outputs=False)

    return step
