"""Seconds of a kernel, and of the pieces of one layer's forward, of one microbatch on one rank.

A kernel follows the roofline, plus a fixed overhead:

    matmul        max(2 m n k / (matmul · peak), bytes / (memory · bandwidth)) + kernel
    attention     FLOPs in full / (attention · peak) + kernel            fused: no scores in memory
    element-wise  bytes / (memory · bandwidth) + kernel

`matmul`, `attention`, `memory`, `kernel` are the chip's four constants (`hardware.py`). Efficiency
thus depends on shape: sizes are padded to tiles of 64, a small matmul pays the same ramp as a large
one, and one with a short side is bound by memory, like those of unfused attention.

Element-wise kernels move, per token and in 16 bits: a norm 4h bytes, an addition 6h (7h with
dropout and its mask), the activation of an MLP 4f (10f gated); scores, where attention is not
fused, 9 a s (softmax 4, dropout 5). Plain PyTorch, without Megatron's fused kernels, moves `EAGER`
times as much.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.planning.hardware import Chip
from minitrain.planning.run import Run
from minitrain.planning.step.network import IDEAL, Fabric

TILE = 64  # the granularity of a thread block's tile


def padded(size: int | float) -> float:
    """Rounds up to whole tiles."""
    return max(1, -(-size // TILE)) * TILE


def matmul(chip: Chip, precision: str, m: float, n: float, k: float, count: int = 1) -> float:
    """(m, k) x (k, n) with 16-bit operands and result, `count` of them in one kernel.

    In FP8 the activations are cast first: read in 16 bits, written in 8, twice (one transposed).
    """
    rate = chip.constants.matmul * chip.peak(precision)
    cast = 0.0
    if precision == "fp8":
        rate *= chip.fp8_share
        cast = traffic(chip, 4 * m * k * count)
    work = 2 * padded(m) * padded(n) * k * count / rate
    bytes_moved = 2 * (m * k + k * n + m * n) * count
    return max(work, traffic(chip, bytes_moved)) + cast + chip.constants.kernel


def fused_attention(chip: Chip, precision: str, flops: float) -> float:
    """Fused kernels like FlashAttention (Dao et al. 2022): in 16 bits, even with FP8 matmuls."""
    sixteen = "bf16" if precision == "fp8" else precision
    return flops / (chip.constants.attention * chip.peak(sixteen)) + chip.constants.kernel


def elementwise(chip: Chip, nbytes: float, kernels: int = 1) -> float:
    """Kernels that read and write `nbytes` in total."""
    return traffic(chip, nbytes) + kernels * chip.constants.kernel


def traffic(chip: Chip, nbytes: float) -> float:
    assert chip.bandwidth, f"{chip.name} has no memory bandwidth in data/hardware.csv"
    return nbytes / (chip.constants.memory * chip.bandwidth)


EAGER = 2.0  # bias, dropout, cast and addition are separate kernels, each of which reads and writes


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of the pieces of one layer's forward."""

    norm: float  # one of two
    add: float  # one of two, with any dropout
    qkv: float
    rotate: float
    scores: float  # the two matmuls of attention, or the fused kernel
    softmax: float  # with dropout; 0 if fused
    out: float
    up: float
    activation: float
    down: float
    gather: float  # one tensor-parallel collective: half an all-reduce
    context: float  # context parallelism's exchange of keys and values
    dispatch: float  # expert parallelism: one way; coming back takes as long
    route: float  # a mixture's tokens sorted by expert, and back


def layer_times(run: Run, fabric: Fabric, mixture: bool) -> LayerTimes:
    plan, model, chip, tokens = run.plan, run.model, run.chip, run.local_tokens
    t, h, kind = plan.tp, model.hidden, plan.precision
    q, kv = model.attention_width, model.kv_heads * model.head_size
    rows = tokens / t if plan.sp else tokens  # split by sequence parallelism only
    copies, f, mlp_tokens, experts = mlp_shape(run, mixture)
    mask = 0 if plan.modern else 1
    eager = EAGER if plan.software == "eager" else 1.0
    return LayerTimes(
        norm=elementwise(chip, eager * 4 * rows * h),
        add=elementwise(chip, eager * (6 + mask) * rows * h),
        qkv=matmul(chip, kind, tokens, (q + 2 * kv) / t, h),
        rotate=elementwise(chip, 4 * tokens * (q + kv) / t) if model.gated else 0.0,
        scores=score_seconds(run),
        softmax=softmax_seconds(run),
        out=matmul(chip, kind, tokens, h, q / t),
        up=matmul(chip, kind, mlp_tokens, copies * f / t, h, experts),
        activation=elementwise(
            chip, eager * (10 if model.gated else 4) * mlp_tokens * experts * f / t, 2
        ),
        down=matmul(chip, kind, mlp_tokens, h, f / t, experts),
        gather=fabric.seconds("all_gather", 2 * tokens * h, t),
        context=2 * fabric.seconds("all_gather", 2 * plan.cp * tokens * kv / t, plan.cp, t),
        dispatch=dispatch_seconds(run, fabric) if mixture else 0.0,
        route=route_seconds(run) if mixture else 0.0,
    )


def elementwise_seconds(run: Run) -> float:
    """All memory-bound kernels of one layer's forward, of one microbatch; provided in lab e10."""
    x = layer_times(run, IDEAL, run.model.moe_layers > 0)
    return 2 * (x.norm + x.add) + x.rotate + x.softmax + x.activation + x.route


def mlp_shape(run: Run, mixture: bool) -> tuple[int, float, float, int]:
    """(matrices before the activation, ffn, tokens per expert, experts on this rank)."""
    model, plan = run.model, run.plan
    copies = 2 if model.gated else 1
    if not mixture:
        return copies, model.ffn, run.local_tokens, 1
    here = max(1, model.experts // plan.ep)
    active = model.experts_per_token + model.shared_experts
    return copies, model.moe_ffn, run.local_tokens * active / here, here


def score_seconds(run: Run) -> float:
    """QKᵀ and AV of a whole sequence, against the keys of all context ranks or of a window; stored
    scores are computed in full and then masked."""
    plan, model, chip = run.plan, run.model, run.chip
    if plan.modern:
        flops = 4 * run.local_tokens * run.keys * model.attention_width / plan.tp
        return fused_attention(chip, plan.precision, flops)
    heads = max(1, plan.micro_batch * model.heads // plan.tp)
    rows, size = run.seq / plan.cp, model.head_size
    first = matmul(chip, plan.precision, rows, run.seq, size, heads)
    return first + matmul(chip, plan.precision, rows, size, run.seq, heads)


def softmax_seconds(run: Run) -> float:
    """Scale, mask and softmax in one kernel (4 bytes a score), dropout in another (5)."""
    if run.plan.modern:
        return 0.0
    scores = run.local_tokens * run.seq * run.model.heads / run.plan.tp
    return elementwise(run.chip, 9 * scores, 2)


def dispatch_seconds(run: Run, fabric: Fabric) -> float:
    """Sends tokens to their experts: to at most 4 nodes, once each (DeepSeek-V3, §2.1.2)."""
    plan, model = run.plan, run.model
    copies = model.experts_per_token
    nodes = plan.ep * plan.tp / run.per_node
    if nodes > 1:
        copies = min(copies, 4)
    width = 1 if plan.precision == "fp8" else 2
    nbytes = width * run.local_tokens * copies * model.hidden / plan.tp
    return fabric.seconds("all_to_all", nbytes, plan.ep, plan.tp)


def route_seconds(run: Run) -> float:
    """Copies tokens into expert order and back: two reads and writes."""
    copies = run.local_tokens * run.model.experts_per_token
    return elementwise(run.chip, 8 * copies * run.model.hidden, 3)
