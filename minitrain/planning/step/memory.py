"""Bytes on each rank by category, for any cut of a run over chips.

States (Rajbhandari et al. 2020, ZeRO, fig. 1), Ψ parameters on a rank before sharding, N ranks:

    weights + gradients + optimizer = (2 + g + 12) Ψ     g = 4 if gradients add up in FP32, else 2
    stage 1 divides the optimizer's 12 by N, stage 2 also g, stage 3 also the weights' 2

Activations of one layer (Korthikanti et al. 2022, table 2), s b tokens, t tensor ranks:

    none        s b h (10 + 24/t + 5 a s/(h t))     sequence parallel: all of it / t
    selective   s b h (10 + 24/t)                   without the scores
    full        2 s b h                             the layer's input

times the layer-passes alive on a stage: 1F1B holds p-r microbatches on rank r, the interleaved
schedule L (1 + (p-1)/(p v)) layers' worth on the first. The code spells out the same terms for
grouped heads, gated MLPs, mixtures and fused attention (which stores no scores or dropout masks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minitrain.measure import parameters
from minitrain.planning.run import Plan, Run, StageLayers, chunks_of_rank

GIB = 2**30


class StateBytes(NamedTuple):
    """Bytes a parameter: 16-bit weights; gradients; FP32 weights and Adam's two moments."""

    weights: int = 2
    gradients: int = 4
    optimizer: int = 12


ZERO_PAPER = StateBytes(gradients=2)
FP32_GRADIENTS = StateBytes()


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float
    embedding: float  # weights, gradients and optimizer of embedding and head, if present
    activations: float
    temporaries: float  # logits; one layer under recomputation; ZeRO-3's gathered layers

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.embedding

    @property
    def total(self) -> float:
        return self.states + self.activations + self.temporaries


def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = FP32_GRADIENTS
) -> tuple[float, float, float]:
    """(weights, gradients, optimizer) of `parameters`, sharded over `ranks` by ZeRO's stage."""
    sharded = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]
    return tuple(parameters * size / n for size, n in zip(per, sharded))


def layer_activations(run: Run, mixture: bool = False) -> float:
    """Bytes that one layer saves per microbatch on one rank, by the table above."""
    plan, model, tokens = run.plan, run.model, run.local_tokens
    if plan.recompute == "full":
        return 2 * tokens * model.hidden
    masks = 0 if plan.modern else 2
    whole = (8 + masks) * model.hidden  # inputs of norms, attention, MLP; two dropout masks
    split = attention_bytes(run) + mlp_bytes(run, mixture)
    if plan.sp:
        whole /= plan.tp
    return tokens * (whole + split / plan.tp)


def attention_bytes(run: Run) -> float:
    """Bytes per token split by tensor parallelism: q, k, v, the output, and the scores."""
    plan, model = run.plan, run.model
    kept = 2 * model.head_size * (2 * model.heads + 2 * model.kv_heads)
    if plan.modern:
        return kept + 4 * model.heads  # the softmax's log-sum-exp
    scores = 0 if plan.recompute == "selective" else 5 * model.heads * run.seq / plan.cp
    return kept + scores


def mlp_bytes(run: Run, mixture: bool) -> float:
    """Bytes per token: the activation function's inputs and output; two inputs if gated."""
    model = run.model
    copies = 6 if model.gated else 4  # gate, up and their product, at 2 bytes; or two
    if not mixture:
        return copies * model.ffn
    experts = model.experts_per_token + model.shared_experts
    dispatched = 4 * model.hidden * model.experts_per_token  # sent out and returned
    return experts * copies * model.moe_ffn + dispatched


def live_passes(plan: Plan, rank: int, microbatches: int) -> int:
    """Chunk activations alive at once on a pipeline rank: `peak_live` of its schedule."""
    p, v, m = plan.pp, plan.vpp, microbatches
    if plan.schedule == "gpipe":
        return m
    if plan.schedule == "zero-bubble":
        return min(p, m)
    if plan.schedule == "1f1b" or v == 1:
        return min(p - rank, m)
    if m < p:
        return m * v
    group = -(-m // (m // p))  # the largest of m // p groups
    return min((v - 1) * group + 2 * (p - rank - 1) + 1, m * v)


def rank_parameters(run: Run, rank: int) -> tuple[float, float]:
    """(layers', experts') parameters of a pipeline rank, after tensor and expert parallelism."""
    model, plan = run.model, run.plan
    dense = experts = 0.0
    for stage in chunks_of_rank(run, rank):
        dense += stage.dense * parameters.layer_weights(model, False)
        dense += stage.mixture * parameters.layer_weights(model, True)
        experts += stage.mixture * parameters.expert_weights(model)
    return dense / plan.tp, experts / plan.tp / plan.ep


def end_parameters(run: Run, stages: list[StageLayers]) -> float:
    """Embedding and head parameters; a tied head on another rank is a copy."""
    first, last = stages[0].first, stages[-1].last
    size = parameters.embedding_weights(run.model, run.seq) if first else 0
    own_head = not (run.model.tied and first)
    return (size + (parameters.head_weights(run.model) if last and own_head else 0)) / run.plan.tp


def rank_memory(run: Run, rank: int = 0, per: StateBytes = FP32_GRADIENTS) -> Memory:
    """Memory of pipeline rank `rank` at its peak."""
    plan = run.plan
    dense, experts = rank_parameters(run, rank)
    data = plan.dp * plan.cp
    states = state_bytes(dense, plan.zero, data, per)
    spread = state_bytes(experts, plan.zero, max(1, data // plan.ep), per)
    stages = list(chunks_of_rank(run, rank))
    embedding = state_bytes(end_parameters(run, stages), plan.zero, data, per)
    per_pass = sum(
        stage.dense * layer_activations(run) + stage.mixture * layer_activations(run, True)
        for stage in stages
    ) / len(stages)
    return Memory(
        *(a + b for a, b in zip(states, spread)),
        embedding=sum(embedding),
        activations=live_passes(plan, rank, run.microbatches) * per_pass,
        temporaries=temporaries(run, stages),
    )


def temporaries(run: Run, stages: list[StageLayers]) -> float:
    """Short-lived memory: the larger of the logits and of one recomputed layer."""
    plan, model, tokens = run.plan, run.model, run.local_tokens
    # with their gradients, both FP32
    logits = 8 * tokens * model.vocab / plan.tp if stages[-1].last else 0
    mixture, again = model.moe_layers > 0, 0.0
    if plan.recompute != "none":
        again = tokens * (attention_bytes_in_full(run) + mlp_bytes(run, mixture)) / plan.tp
    gathered = 0.0
    if plan.zero == 3:  # two layers' weights and one's gradient, unsharded
        weights = parameters.layer_weights(model, mixture)
        weights += parameters.expert_weights(model) / plan.ep if mixture else 0
        gathered = (2 * 2 + 2) * weights / plan.tp
    return max(logits, again) + gathered


def attention_bytes_in_full(run: Run) -> float:
    """`attention_bytes` plus the scores, which are alive while a layer is recomputed."""
    scores = 0 if run.plan.modern else 5 * run.model.heads * run.seq / run.plan.cp
    return 8 * run.model.attention_width + scores


def peak_memory(run: Run) -> Memory:
    """Memory of the fullest pipeline rank: the first (activations) or the last."""
    ranks = {0, run.plan.pp - 1, run.plan.pp // 2}
    return max((rank_memory(run, rank) for rank in sorted(ranks)), key=lambda memory: memory.total)
