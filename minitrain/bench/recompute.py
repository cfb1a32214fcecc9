"""Recomputation beside `torch.utils.checkpoint`, full and selective, and offload beside its
`save_on_cpu`: seconds of forward and backward, and the bytes held at the peak of them.

Bytes are the ledger's, without parameters and their gradients, which are the same; for offload,
where a CPU is its own far side, those that left. Before it is timed, both must leave gradients
that are bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from minitrain.bench import OURS, PEER, Case
from minitrain.measure.clock import Comparison, Timing, compare
from minitrain.measure.memory import MemoryLedger
from minitrain.model.config import preset
from minitrain.model.transformer import Stack, Transformer, build, one_after_another
from minitrain.training.activation_offload import Offload
from minitrain.training.loop import token_weighted_loss
from minitrain.training.placement import uniform_plan
from minitrain.training.recompute_model import Segmented
from minitrain.training.selective import save_matmuls

SHAPES = (("1M", 8, 128), ("10M", 4, 128))  # preset, batch, length
SLOWER = (
    "the matmuls are the same, so what is left is noise (see the spread) or our hooks' Python, "
    "a call a saved tensor as in torch"
)
LARGER = "the same tensors are kept, so what is left is the moment of the peak"
PEERS = {
    "full": "torch.utils.checkpoint",
    "selective": "torch's selective checkpoint",
    "offload": "torch's save_on_cpu",
}


@dataclass(frozen=True)
class Contender:
    """How a model's blocks are run, and within what."""

    stack: Stack
    within: Callable[[], AbstractContextManager] = nullcontext


def cases(
    repeats: int = 11, shapes: Sequence[tuple[str, int, int]] = SHAPES, device: str | None = None
) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [
        case
        for name, batch, length in shapes
        for how in PEERS
        for case in _pair(how, name, batch, length, repeats, device)
    ]


def _pair(
    how: str, name: str, batch: int, length: int, repeats: int, device: str
) -> tuple[Case, Case]:
    """The seconds and the bytes of one way and shape."""
    what = f"{'offload' if how == 'offload' else f'recompute {how}'}"
    shape, peer = f"{name}, {batch} x {length}", f"{PEERS[how]}, torch {torch.__version__}"
    timed = partial(_timed, how, name, batch, length, device, repeats)
    weighed = partial(_weighed, how, name, batch, length, device)
    return (
        Case(f"{what} {shape}", peer, timed, SLOWER),
        Case(f"{what}, bytes, {shape}", peer, weighed, LARGER, unit="bytes"),
    )


def contenders(how: str, layers: int) -> dict[str, Contender]:
    if how == "offload":
        return {
            OURS: Contender(one_after_another, Offload),
            PEER: Contender(one_after_another, save_on_cpu),
        }
    contexts = partial(create_selective_checkpoint_contexts, _torch_policy)
    peer = _checkpointed_by_torch(contexts if how == "selective" else None)
    return {OURS: Contender(Segmented(uniform_plan(layers, how))), PEER: Contender(peer)}


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


def _timed(how: str, name: str, batch: int, length: int, device: str, repeats: int) -> Comparison:
    model, text = _model_and_text(name, batch, length, device)
    steps = {
        who: partial(_step, model, contender, text)
        for who, contender in contenders(how, model.config.layers).items()
    }
    gradients = []
    for step in steps.values():
        step()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients)), "gradients must be bit-equal"
    return compare(steps, repeats)


def _weighed(how: str, name: str, batch: int, length: int, device: str) -> Comparison:
    model, text = _model_and_text(name, batch, length, device)
    found = contenders(how, model.config.layers)
    return Comparison({who: Timing((_held(model, c, text),)) for who, c in found.items()})


def _held(model: Transformer, contender: Contender, text: Tensor) -> int:
    model.zero_grad(set_to_none=True)
    with MemoryLedger(model) as ledger:
        _step(model, contender, text)
    return ledger.peak["activations"] + ledger.peak["temporaries"]


def _model_and_text(name: str, batch: int, length: int, device: str) -> tuple[Transformer, Tensor]:
    """text (B, T+1)."""
    config = preset(name)
    text = torch.randint(config.vocab_size, (batch, length + 1), device=device)
    return build(config, device=device), text


def _step(model: Transformer, contender: Contender, text: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model.stack = contender.stack
    with contender.within():
        loss = token_weighted_loss(model(text[:, :-1]), text[:, 1:], text[:, 1:].numel())
    loss.backward()
