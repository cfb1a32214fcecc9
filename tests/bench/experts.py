"""Our MoE layer against a dense loop over its experts and `transformers`' Mixtral block.

Forward and backward of one layer with the same weights and tokens, alternating in this process.
Before timing, all three must give the same output. The peak is the ledger's: all bytes alive at the
peak of a forward and backward, weights and gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, TORCH, Case, Steps, once, peer_module
from minitrain.bench.steps import peak_bytes
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import ModelConfig
from minitrain.model.experts.moe import MoE, moe_naive

EXPERTS = (2, 8, 16, 32)
BATCH, LENGTH, WIDTH, INNER, PER_TOKEN = 4, 256, 256, 256, 2
TIME_REASON = (
    "with as many experts as a token chooses nothing is spared, and sorting the rows is extra; "
    "beyond that it is noise (see the spread)"
)
BYTES_REASON = (
    "the rows of K choices a token, which are copied to be sorted, outweigh what is spared"
)

Forward = Callable[[Tensor], Tensor]
Peer = Callable[[MoE], tuple[Forward, nn.Module]]


def cases(repeats: int = 11, experts: Sequence[int] = EXPERTS) -> list[Case]:
    return [
        Case(
            f"MoE layer, {count} experts, {BATCH} x {LENGTH}: {what}",
            name,
            partial(measure, count, peer, repeats),
            reason,
            unit,
        )
        for count in experts
        for name, peer in (
            (f"dense loop over experts in {TORCH}", dense_loop),
            (mixtral_name(), mixtral),
        )
        for what, unit, measure, reason in (
            ("forward and backward", "seconds", _seconds, TIME_REASON),
            ("peak", "bytes", _bytes, BYTES_REASON),
        )
    ]


def _seconds(experts: int, peer: Peer, repeats: int) -> Comparison:
    steps, _ = contenders(experts, peer)
    return compare(steps, repeats)


def _bytes(experts: int, peer: Peer, repeats: int) -> Comparison:
    steps, modules = contenders(experts, peer)
    peaks = {}
    for name, step in steps.items():
        modules[name].zero_grad(set_to_none=True)
        peaks[name] = peak_bytes(step, modules[name])
    return once(peaks)


def contenders(experts: int, peer: Peer) -> tuple[Steps, dict[str, nn.Module]]:
    """Ours and the peer, each as a step and as the module that holds its weights."""
    torch.manual_seed(0)
    config = ModelConfig(1, WIDTH, 1, 1, 1, INNER, experts=experts, experts_per_token=PER_TOKEN)
    moe = MoE(config)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    forward, module = peer(moe)
    torch.testing.assert_close(moe(x), forward(x), rtol=1e-4, atol=1e-4)
    steps = {OURS: _step(moe, moe, x), PEER: _step(forward, module, x)}
    return steps, {OURS: moe, PEER: module}


def _step(forward: Forward, module: nn.Module, x: Tensor) -> Callable[[], None]:
    x, slope = x.clone().requires_grad_(), torch.ones_like(x)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        forward(x).backward(slope)

    return step


def dense_loop(moe: MoE) -> tuple[Forward, nn.Module]:
    return partial(moe_naive, moe), moe


def mixtral(moe: MoE) -> tuple[Forward, nn.Module]:
    """transformers' block of the same shape and weights, with its own default for the experts."""
    modeling = peer_module("experts", "transformers.models.mixtral.modeling_mixtral")
    experts = moe.experts
    config = modeling.MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_local_experts=moe.count,
        num_experts_per_tok=PER_TOKEN,
        experts_implementation="grouped_mm",
    )
    block = modeling.MixtralSparseMoeBlock(config)
    with torch.no_grad():
        block.gate.weight.copy_(moe.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([experts.gate.mT, experts.up.mT], dim=1))
        block.experts.down_proj.copy_(experts.down.mT)
    return block, block


def mixtral_name() -> str:
    version = peer_module("experts", "transformers").__version__
    return f"Mixtral block of transformers {version}, grouped_mm"
