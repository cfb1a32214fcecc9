"""Recomputation against `torch.utils.checkpoint`, full and selective, and offload against
`save_on_cpu`: seconds of forward and backward, and bytes.

Bytes are the peak, by the ledger, without parameters and their gradients, which are the same; for
offload those moved to the CPU. On a CPU nothing is moved, and `save_on_cpu` copies nothing, so
offload is timed only on a GPU. Before timing, both must leave bitwise equal gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from minitrain.bench.case import OURS, PEER, TORCH, Case, Shapes, once
from minitrain.bench.steps import gradients, next_token_loss, random_text
from minitrain.measure.clock import Comparison, compare
from minitrain.measure.memory import MemoryLedger
from minitrain.memory.activation_offload import Offload
from minitrain.memory.placement import uniform_plan
from minitrain.memory.segments import Segmented
from minitrain.memory.selective import save_matmuls
from minitrain.model.config import preset
from minitrain.model.transformer import Stack, build, one_after_another

SHAPES = (("1M", 8, 128), ("10M", 4, 128))
SLOWER = (
    "the matmuls are the same, so what is left is noise (see the spread) or our hooks' Python, "
    "a call a saved tensor as in torch"
)
LARGER = "the same tensors are kept, so what is left is the moment of the peak"
PEERS = {"full": "torch.utils.checkpoint", "selective": "torch's selective checkpoint"}


def cases(repeats: int = 11, shapes: Shapes = SHAPES, device: str | None = None) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    out = []
    for work in (Work(*shape, device) for shape in shapes):
        out += [case for how in PEERS for case in _recompute_cases(how, work, repeats)]
        out += _offload_cases(work, repeats)
    return out


class Work(NamedTuple):
    name: str  # of a preset
    batch: int
    length: int
    device: str

    def __str__(self) -> str:
        return f"{self.name}, {self.batch} x {self.length}"


def _recompute_cases(how: str, work: Work, repeats: int) -> list[Case]:
    """The seconds and the bytes of one method and shape."""
    peer = f"{PEERS[how]}, {TORCH}"
    steps = partial(_recompute_steps, how, work)
    return [
        Case(f"recompute {how} {work}", peer, partial(_timed, steps, repeats), SLOWER),
        Case(f"recompute {how}, bytes, {work}", peer, partial(_held, steps), LARGER, "bytes"),
    ]


def _offload_cases(work: Work, repeats: int) -> list[Case]:
    peer = f"torch's save_on_cpu, {TORCH}"
    out = [Case(f"offload, bytes sent, {work}", peer, partial(_sent, work), LARGER, "bytes")]
    if work.device.startswith("cuda"):
        timed = partial(_timed, partial(_offload_steps, work), repeats)
        out.append(Case(f"offload {work}", peer, timed, SLOWER))
    return out


class Step:
    """Forward and backward of a model, its blocks run by `stack`, its forward within a context."""

    def __init__(
        self,
        work: Work,
        stack: Stack = one_after_another,
        within: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        self.model, self.within = build(preset(work.name), device=work.device), within
        self.model.stack = stack
        self.text = random_text(*work)

    def __call__(self) -> None:
        self.model.zero_grad(set_to_none=True)
        with self.within():
            loss = next_token_loss(self.model, self.text)
        loss.backward()


def _recompute_steps(how: str, work: Work) -> dict[str, Step]:
    contexts = partial(create_selective_checkpoint_contexts, _torch_policy)
    peer = _checkpointed_by_torch(contexts if how == "selective" else None)
    plan = uniform_plan(preset(work.name).layers, how)
    return {OURS: Step(work, Segmented(plan)), PEER: Step(work, peer)}


def _offload_steps(work: Work) -> dict[str, Step]:
    return {
        OURS: Step(work, within=partial(Offload, 0)),
        PEER: Step(work, within=partial(save_on_cpu, pin_memory=True)),
    }


def _checkpointed_by_torch(contexts: Callable | None) -> Stack:
    options = {} if contexts is None else {"context_fn": contexts}

    def stack(blocks, x, turns, mask):
        for block in blocks:
            x = checkpoint(block, x, turns, mask, use_reentrant=False, **options)
        return x

    return stack


def _torch_policy(context, op, *arguments, **options) -> CheckpointPolicy:
    kept = save_matmuls(op)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _timed(make_steps: Callable[[], dict[str, Step]], repeats: int) -> Comparison:
    steps = make_steps()
    for step in steps.values():
        step()
    left = [gradients(step.model) for step in steps.values()]
    torch.testing.assert_close(*left, rtol=0, atol=0)
    return compare(steps, repeats)


def _held(make_steps: Callable[[], dict[str, Step]]) -> Comparison:
    return once({who: _peak(step) for who, step in make_steps().items()})


def _peak(step: Step) -> int:
    with MemoryLedger(step.model) as ledger:
        step()
    return ledger.peak["activations"] + ledger.peak["temporaries"]


def _sent(work: Work) -> Comparison:
    """Bytes of tensors that each copies in its hooks: theirs every saved one, including weights."""
    ours, theirs = Offload(0), save_on_cpu()
    sizes, pack = [], theirs.pack_hook

    def counted(tensor: Tensor) -> object:
        sizes.append(tensor.nbytes)
        return pack(tensor)

    theirs.pack_hook = counted
    Step(work, within=lambda: ours)()
    Step(work, within=lambda: theirs)()
    return once({OURS: ours.sent_bytes, PEER: sum(sizes)})
