"""A planned training run: the model's shape, the chips, how the work is split.

The names are those of `plan predict`'s columns. t·c·p·d = chips: tensor, context, pipeline and data
parallel; experts are spread over `ep` of the data-parallel ranks. Every check names the invalid
field and the valid values.

Stage c·p + r of a pipeline is chunk c of rank r. The embedding is in the first stage, the head in
the last. If the layers do not divide evenly the end stages get fewer, as they also hold embedding
and head: Llama 3's 126 layers over 128 stages leave one out at either end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from minitrain.errors import InputError, check_whole
from minitrain.parallel.pipeline.schedules import SCHEDULES, split_layers
from minitrain.planning.hardware import Chip, find_chip

PLANNED = [name for name in SCHEDULES if name != "dualpipe"]  # dualpipe holds each stage twice
MOST_STAGES = 1024  # the longest published pipeline here has 128


@dataclass(frozen=True)
class Model:
    """A decoder; `experts` 0 is dense. A gated MLP (Llama) has three matrices, else GPT's two.

    `head_size` defaults to hidden / heads; `tied` (the head is the embedding's matrix) defaults to
    True for a GPT and False for a gated model.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool = True
    experts: int = 0
    experts_per_token: int = 0
    moe_ffn: int = 0
    shared_experts: int = 0  # used by every token
    dense_layers: int = 0  # leading layers of a mixture with a dense MLP of width `ffn`
    head_size: int = 0
    tied: bool | None = None
    qkv_bias: bool = False  # Qwen2
    window: int | None = None  # a token sees itself and the window - 1 tokens before it

    def __post_init__(self) -> None:
        if self.tied is None:
            object.__setattr__(self, "tied", not self.gated)
        if not self.head_size and self.heads > 0:
            if self.hidden % self.heads:
                raise InputError(
                    f"heads is {self.heads}, which does not divide hidden {self.hidden}: change "
                    "one of them, or give head_size"
                )
            object.__setattr__(self, "head_size", self.hidden // self.heads)

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    # ---- the same under the names of `measure.parameters.Shape` ----

    hidden_size = property(lambda self: self.hidden)
    ffn_size = property(lambda self: self.ffn)
    vocab_size = property(lambda self: self.vocab)
    expert_ffn_size = property(lambda self: self.moe_ffn)
    attention_width = property(lambda self: self.heads * self.head_size)


@dataclass(frozen=True)
class Plan:
    """A plan of a training step: how it is split over chips and time, and which software runs it.

    `fused`: Megatron's kernels, FlashAttention, sends overlapped with computation. `eager`: plain
    PyTorch, one kernel per element-wise operation. `2022`: Megatron of 2021-22, fused except for
    attention, whose scores are stored; with dropout; a stage waits for its sends.
    """

    tp: int = 1
    sp: bool = False
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    ep: int = 1
    zero: int = 0
    recompute: str = "none"  # selective: attention's scores; full: whole layers
    precision: str = "bf16"
    micro_batch: int = 1
    schedule: str = "1f1b"
    software: str = "fused"

    @property
    def modern(self) -> bool:
        return self.software != "2022"

    @property
    def ranks(self) -> int:
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True)
class Run:
    name: str
    chip: Chip
    per_node: int
    model: Model
    plan: Plan
    seq: int
    global_batch: int

    @property
    def gpus(self) -> int:
        return self.plan.ranks

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.seq

    @cached_property
    def microbatches(self) -> int:
        return self.global_batch // (self.plan.dp * self.plan.micro_batch)

    @property
    def keys(self) -> int:
        """Most keys that a token attends to."""
        return min(self.seq, self.model.window or self.seq)

    @property
    def local_tokens(self) -> int:
        """Tokens of a microbatch on one rank; context parallelism splits the sequence."""
        return self.plan.micro_batch * self.seq // self.plan.cp

    def __post_init__(self) -> None:
        check_sizes(self)
        check_mesh(self)
        check_batch(self)
        self.chip.peak(self.plan.precision)


def make_run(
    chip: str | Chip, model: Model, plan: Plan, seq: int, global_batch: int, name: str = "run",
    per_node: int | None = None,
) -> Run:  # fmt: skip
    chip = find_chip(chip) if isinstance(chip, str) else chip
    return Run(name, chip, per_node or chip.per_node, model, plan, seq, global_batch)


def check_sizes(run: Run) -> None:
    model = run.model
    sizes = {"seq": run.seq, "global_batch": run.global_batch, "gpus_per_node": run.per_node}
    for field in ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab"):
        sizes[field] = getattr(model, field)
    for field in ("tp", "cp", "pp", "vpp", "dp", "ep", "micro_batch"):
        sizes[field] = getattr(run.plan, field)
    for field, value in sizes.items():
        check_whole(field, value)
    if model.heads % model.kv_heads:
        raise InputError(f"kv_heads is {model.kv_heads}: it must divide heads {model.heads}")
    if model.experts and not (0 < model.experts_per_token <= model.experts and model.moe_ffn > 0):
        raise InputError(
            f"experts is {model.experts}: give experts_per_token (1 to {model.experts}) and moe_ffn"
        )
    _check_names(run.plan)


def _check_names(plan: Plan) -> None:
    if plan.zero not in (0, 1, 2, 3):
        raise InputError(f"zero is {plan.zero}: it must be 0, 1, 2 or 3")
    if plan.recompute not in ("none", "selective", "full"):
        raise InputError(f"recompute is '{plan.recompute}': it must be none, selective or full")
    if plan.software not in ("fused", "eager", "2022"):
        raise InputError(f"software is '{plan.software}': it must be fused, eager or 2022")
    if plan.schedule not in PLANNED:
        raise InputError(f"schedule is '{plan.schedule}': it must be {', '.join(PLANNED)}")


def check_mesh(run: Run) -> None:
    """Checks the size of each axis against this model."""
    plan, model = run.plan, run.model
    if model.heads % plan.tp:
        raise InputError(f"tp is {plan.tp}, which does not divide heads {model.heads}")
    if run.seq % plan.cp:
        raise InputError(f"cp is {plan.cp}, which does not divide seq {run.seq}")
    if plan.pp * plan.vpp > model.layers + 2:  # embedding and head may have a stage each
        raise InputError(
            f"pp {plan.pp} x vpp {plan.vpp} cuts {model.layers} layers into more parts than there "
            f"are: pp·vpp may be {model.layers} at most"
        )
    if plan.pp * plan.vpp > MOST_STAGES:
        raise InputError(
            f"pp {plan.pp} x vpp {plan.vpp} is {plan.pp * plan.vpp} stages: a pipeline of up to "
            f"{MOST_STAGES} can be timed, use a smaller pp"
        )
    if plan.vpp > 1 and plan.schedule != "interleaved":
        raise InputError(f"vpp is {plan.vpp} with schedule '{plan.schedule}': use 'interleaved'")
    if model.dense_layers > model.layers:
        raise InputError(f"dense_layers is {model.dense_layers}: layers {model.layers} at most")
    if plan.ep > 1 and not model.experts:
        raise InputError(f"ep is {plan.ep}, but experts is 0: use 1, or give experts")
    if plan.ep > 1 and (model.experts % plan.ep or (plan.dp * plan.cp) % plan.ep):
        raise InputError(
            f"ep is {plan.ep}: it must divide experts {model.experts} and dp·cp {plan.dp * plan.cp}"
        )


def check_batch(run: Run) -> None:
    size = run.plan.dp * run.plan.micro_batch
    if run.global_batch % size:
        below = run.global_batch // size * size
        near = f"{below} or {below + size}" if below else str(size)
        raise InputError(
            f"global_batch is {run.global_batch}, not a multiple of dp {run.plan.dp} x micro_batch "
            f"{run.plan.micro_batch}: use {near}"
        )


@dataclass(frozen=True)
class StageLayers:
    """`dense` and `mixture` layers, and whether the stage has the embedding or the head."""

    dense: int
    mixture: int
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        return self.dense + self.mixture


def stages_of(run: Run) -> tuple[StageLayers, ...]:
    """All v·p stages in forward order."""
    return split_stages(run.model.layers, run.model.moe_layers, run.plan.pp * run.plan.vpp)


@lru_cache(maxsize=4096)
def split_stages(layers: int, mixture: int, stages: int) -> tuple[StageLayers, ...]:
    """Splits layers over stages; a mixture's dense layers come first."""
    counts = split_layers(layers, stages)
    dense_left = layers - mixture
    found = []
    for i, count in enumerate(counts):
        dense = min(dense_left, count)
        dense_left -= dense
        found.append(StageLayers(dense, count - dense, i == 0, i == len(counts) - 1))
    return tuple(found)


def chunks_of_rank(run: Run, rank: int) -> Iterator[StageLayers]:
    """The stages that pipeline rank `rank` holds."""
    yield from stages_of(run)[rank :: run.plan.pp]
