"""Recomputation for a model: its blocks run in segments, and keep their names and weights.

    none        every block keeps what it saves
    selective   each block keeps its matmuls' results, and recomputes the rest
    full        each block keeps its input
    k           blocks 0, k, 2k, … keep their input, the others everything
    a plan      from `placement.py`, such as `optimal_plan(layers, budget_bytes)`

Papers: as in `recompute.py`. Lab: e05.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from minitrain.errors import InputError, unknown_name
from minitrain.measure.flops import attention_flops_per_token
from minitrain.measure.parameters import layer_matmuls
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.placement import Layer, SegmentPlan, every_kth_plan, uniform_plan
from minitrain.memory.recompute import Checkpoint
from minitrain.memory.selective import Policy, save_matmuls
from minitrain.model.config import ModelConfig
from minitrain.model.rope import Rotation
from minitrain.model.transformer import Transformer, one_after_another

MODES = ("none", "selective", "full")


@dataclass(frozen=True)
class Segmented:
    """A Transformer's `stack` that runs its blocks according to a plan."""

    plan: SegmentPlan
    policy: Policy = save_matmuls  # of the selectively recomputed segments
    stop_early: bool = True

    def __call__(
        self, blocks: Iterable[nn.Module], x: Tensor, turns: Rotation, mask: Tensor | None
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        blocks = list(blocks)
        for segment in self.plan:
            part = blocks[segment.start : segment.stop]
            if segment.mode == "none":
                x = one_after_another(part, x, turns, mask)
            else:
                policy = self.policy if segment.mode == "selective" else None
                again = Checkpoint(policy, self.stop_early)
                x = again(one_after_another, part, x, turns, mask)
        return x


def recompute(
    model: Transformer, how: str | int | SegmentPlan, policy: Policy = save_matmuls
) -> Transformer:
    """`model`, whose next forwards keep for backward what `how` says; "none" undoes it.

    Gradients stay the same to the last bit. Parameters, their names and hooks are not touched, so
    it may come before or after DDP, an optimizer, or loading a checkpoint.
    """
    plan = _plan(how, len(model.blocks))
    _check_covers(plan, len(model.blocks))
    plain = all(segment.mode == "none" for segment in plan)
    model.stack = one_after_another if plain else Segmented(plan, policy)
    return model


def _plan(how: str | int | SegmentPlan, layers: int) -> SegmentPlan:
    if isinstance(how, str):
        if how not in MODES:
            raise unknown_name("way of recomputing", how, MODES)
        return uniform_plan(layers, how)
    return every_kth_plan(layers, how) if isinstance(how, int) else tuple(how)


def _check_covers(plan: SegmentPlan, layers: int) -> None:
    """Checks that every block occurs once, in order, with a known mode."""
    covered = [i for segment in plan for i in range(segment.start, segment.stop)]
    if covered != list(range(layers)):
        raise InputError(
            f"the plan runs blocks {covered} of a model that has {layers}: each must run once, in "
            "order; make the plan for this model"
        )
    for segment in plan:
        if segment.mode not in MODES:
            raise unknown_name("mode of a segment", segment.mode, MODES)


def block_layers(config: ModelConfig, batch: int, length: int) -> list[Layer]:
    """The model's float32 blocks as a chain for `optimal_plan`, in closed form; costs are FLOPs."""
    tokens = batch * length
    attention = attention_flops_per_token(config, length) // config.layers
    saved = {how: tokens * block_bytes_per_token(config, recompute=how) for how in MODES}
    layer = Layer(
        input_bytes=saved["full"],
        saved_bytes=saved["none"],
        selective_bytes=saved["selective"],
        cost=tokens * (2 * layer_matmuls(config, bool(config.experts)) + attention),
        spared_cost=tokens * 2 * config.hidden_size * config.ffn_size,  # `down`
    )
    return [layer] * config.layers
