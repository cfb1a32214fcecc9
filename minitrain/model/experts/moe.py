"""A mixture of experts in place of the MLP: each token uses K of E experts, and the shared ones.

    x ─ router ─ dispatch ─ exchange( experts ) ─ combine ─ + shared(x) ─ y
          └───────────── weights ───────────────────┘

Parameters grow with E, FLOPs a token with K. `exchange` is the hook for expert parallelism: it
sends rows to the ranks of their experts and back, and on one rank does nothing.

The auxiliary losses need no change to the training loop: `attach` returns the weights unchanged,
and adds the losses' gradient in backward. The calls around a step's forwards and backwards:

    set_step(model, tokens)     all tokens of the step, over microbatches and ranks
    forward, backward, …        the caller's loss is its share: its summed loss / all targets
    update_biases(model)        once, from the counts summed over all ranks

The load is counted in backward: once a microbatch, never twice when activations are recomputed,
and never during evaluation.

Papers: Shazeer et al., arXiv 1701.06538; Mixtral, 2401.04088; DeepSeekMoE, 2401.06066 (shared).
Lab: e02d_expert_parallel. Shapes: B batch  T tokens  M = B·T  D width  E experts  K a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.model.config import ModelConfig
from minitrain.model.experts.dispatch import RoutingPlan, combine, dispatch, make_plan
from minitrain.model.experts.grouped import Experts, experts_naive
from minitrain.model.experts.router import Router, Routing, Sum, alone
from minitrain.model.mlp import MLP


@dataclass(frozen=True)
class Statistics:
    """Routing statistics of a layer on this rank, additive over microbatches and ranks."""

    load: Tensor  # (E,) choices per expert, including dropped ones
    dropped: Tensor  # () choices dropped because their expert was full
    losses: Tensor  # (3,) sequence balance, batch balance and z, before their weights

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.load + other.load, self.dropped + other.dropped, self.losses + other.losses
        )


Answer = Callable[[Tensor, Tensor], Tensor]  # rows (R, D), counts (E,) -> (R, D)


def stay(experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """The exchange if all experts are on this rank."""
    return experts(rows, counts)


class MoE(nn.Module):
    """`exchange` sends rows to their experts and back; replace `stay` for several ranks.

    `last` is the latest forward's routing, `seen` the sum over the step's backwards so far.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config.experts, config.hidden_size, config.expert_ffn_size)
        self.shared: nn.Module | None = None
        if config.shared_experts:  # several shared experts are one MLP of their joint width
            joint = config.shared_experts * config.expert_ffn_size
            self.shared = MLP(replace(config, ffn_size=joint))
        self.count, self.capacity = config.experts, config.capacity
        self.loss_weights = (config.sequence_balance, config.batch_balance, config.z_loss)
        self.exchange: Callable[[Answer, Tensor, Tensor], Tensor] = stay
        self.step_tokens: Tensor | int | None = None
        self.loss_scale = 1.0
        self.last: Statistics | None = None
        self.seen: Statistics | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        routing = self.router(x)
        flat = in_autocast(rearrange(x, "b t d -> (b t) d"))  # (M, D)
        plan = self.plan(routing)
        weights = rearrange(self.charge(routing, plan), "b t k -> (b t) k")  # (M, K)
        rows = self.exchange(self.experts, dispatch(flat, plan), plan.counts)  # (R, D)
        y = combine(rows, weights, plan)  # (M, D)
        if self.shared is not None:
            y = y + self.shared(flat)
        return y.view(x.shape)

    def plan(self, routing: Routing) -> RoutingPlan:
        """With capacity c, each expert takes at most c times an even load, on this rank."""
        experts, p = (
            rearrange(z, "b t k -> (b t) k") for z in (routing.experts, routing.probabilities)
        )
        if self.capacity is None:
            return make_plan(experts, self.count)
        rows = math.ceil(self.capacity * experts.numel() / self.count)
        return make_plan(experts, self.count, rows, p)

    def charge(self, routing: Routing, plan: RoutingPlan) -> Tensor:
        """The weights; their backward also adds the losses' gradient and counts the load."""
        here = routing.experts[..., 0].numel()
        tokens = here if self.step_tokens is None else self.step_tokens
        losses = routing.losses / tokens  # (3,)
        self.last = Statistics(routing.load, plan.dropped, losses.detach())
        weighed = (losses * losses.new_tensor(self.loss_weights)).sum()
        return attach(routing.weights, weighed, self.loss_scale, partial(self.note, self.last))

    def note(self, statistics: Statistics) -> None:
        self.seen = statistics if self.seen is None else self.seen + statistics


def moe_naive(moe: MoE, x: Tensor) -> Tensor:
    """The result of a dropless `moe`, computed with every expert for every token: x and y (B, T,
    D)."""
    routing = moe.router(x)
    weights = torch.zeros(*x.shape[:2], moe.count, dtype=routing.weights.dtype, device=x.device)
    weights = weights.scatter(-1, routing.experts, routing.weights)  # (B, T, E)
    flat, weights = (rearrange(z, "b t d -> (b t) d") for z in (x, weights))
    y = experts_naive(flat, weights, *moe.experts.parameters())  # (M, D)
    if moe.shared is not None:
        y = y + moe.shared(flat)
    return y.view(x.shape)


def attach(
    x: Tensor, loss: Tensor, scale: float = 1.0, once: Callable[[], object] = lambda: None
) -> Tensor:
    """Returns x; its backward also backpropagates scale·loss, and calls `once` a single time."""
    return _Attach.apply(x, loss, scale, once)


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, loss: Tensor, scale: float, once: Callable[[], object]) -> Tensor:
        ctx.gradient, ctx.once = torch.full_like(loss, scale), once
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx: Tensor) -> tuple[Tensor, Tensor, None, None]:
        if ctx.once is not None:  # a pipeline may run the same backward for x, then for weights
            ctx.once()
            ctx.once = None
        return dx, ctx.gradient, None, None


def in_autocast(x: Tensor) -> Tensor:
    """Casts x to autocast's dtype, which grouped matmuls do not do themselves."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


# ---- a training step ----


def mixtures(model: nn.Module) -> list[MoE]:
    return [module for module in model.modules() if isinstance(module, MoE)]


def set_step(model: nn.Module, tokens: Tensor | int, scale: float = 1.0) -> None:
    """Begins a step: `tokens` pass through the model in it, padding included, over all ranks.

    `scale` is the factor on the caller's loss: N if gradients are averaged over N ranks, the loss
    scale of float16. Without a call, a microbatch is a step, on one rank.
    """
    for layer in mixtures(model):
        layer.step_tokens, layer.loss_scale, layer.seen = tokens, scale, None


@torch.no_grad()
def update_biases(model: nn.Module, sum_over_ranks: Sum = alone) -> None:
    """Once a step, after its last backward. One all-reduce for all layers, in order.

    `sum_over_ranks` sums in place over the ranks that hold different tokens.
    """
    layers = [layer for layer in mixtures(model) if layer.router.bias_rate]
    if not layers:
        return
    zeros = torch.zeros_like(layers[0].router.bias_steps)
    loads = torch.stack([zeros if layer.seen is None else layer.seen.load for layer in layers])
    sum_over_ranks(loads)  # (L, E)
    for layer, load in zip(layers, loads):
        layer.router.update_bias(load)
