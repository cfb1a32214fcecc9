"""A run from a row of text: the columns of `plan predict`, their defaults and checks.

Empty cells take a default; invalid ones raise an error with the field's name and the valid values.

    name               any text
    chip               required: a name from data/hardware.csv
    gpus               tp·cp·pp·dp
    gpus_per_node      the chip's usual node
    seq                2048
    global_batch       dp·micro_batch, times 4·pp in a pipeline; counts sequences
    layers             required
    hidden             required
    ffn                4·hidden; gated, 8/3·hidden up to a multiple of 256
    heads              the divisor of hidden that is nearest to hidden / 128
    kv_heads           heads
    vocab              50304
    head_size          hidden / heads
    gated              1 (Llama); 0 is GPT: two matrices, biases, learned positions
    tied               0 (the head has its own matrix); 1 for a GPT
    qkv_bias           0; 1 is Qwen2
    window             none: a token reads all tokens before it
    experts            0: dense
    experts_per_token  2 (1 if there is a single one), with experts
    moe_ffn            ffn
    shared_experts     0
    dense_layers       0: the number of leading layers of a mixture with a dense MLP of width ffn
    tp                 1
    sp                 0
    cp                 1
    pp                 1
    vpp                as many chunks, up to 8, as divide the layers evenly
    dp                 gpus / (tp·cp·pp)
    ep                 1
    zero               0
    recompute          none
    precision          bf16; fp16 where the chip lacks it
    micro_batch        1 in a pipeline; else as many as fit, up to 8
    schedule           1f1b; interleaved where vpp is over 1
    software           fp16: 2022, Megatron then; without tp and pp: eager PyTorch; else fused
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from minitrain.errors import InputError
from minitrain.planning.hardware import Chip, find_chip
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.memory import peak_memory

OF_THE_RUN = ("name", "chip", "gpus", "gpus_per_node", "seq", "global_batch")
COLUMNS = (*OF_THE_RUN, *(field.name for kind in (Model, Plan) for field in fields(kind)))
LARGEST = 1e9  # upper bound on any of these numbers
LARGEST_HIDDEN = 1e6  # its divisors are tried one by one


def run_from_row(row: Mapping[str, str | None]) -> Run:
    """The run that a row describes; an InputError names the field that is wrong or missing."""
    cells = {key: str(value).strip() for key, value in row.items() if key and value is not None}
    chip = find_chip(needed(cells, "chip", "a name of data/hardware.csv, A100-SXM-80GB for one"))
    model = model_of(cells)
    seq = whole(cells, "seq", 2048)
    plan = plan_of(cells, chip)
    per_node = whole(cells, "gpus_per_node", chip.per_node)
    name = cells.get("name") or "run"
    batch = optional(cells, "global_batch")
    micro = optional(cells, "micro_batch")
    if micro is not None or batch is None:
        plan = replace(plan, micro_batch=1 if micro is None else micro)
        pipeline = 4 * plan.pp if plan.pp > 1 else 1
        batch = batch or max(1, plan.dp * plan.micro_batch * pipeline)
    plan = with_chunks(plan, cells, model, batch)
    run = make_run(chip, model, plan, seq, batch, name, per_node)
    return run if micro is not None or plan.pp > 1 else with_micro_batch(run)


def model_of(cells: Mapping[str, str]) -> Model:
    layers = whole(cells, "layers", None)
    hidden = whole(cells, "hidden", None)
    gated = flag(cells, "gated", True)
    wide = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
    ffn = whole(cells, "ffn", wide)
    heads = whole(cells, "heads", usual_heads(hidden))
    experts = optional(cells, "experts") or 0
    if not experts:
        refuse_experts(cells)
    return Model(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=whole(cells, "kv_heads", heads),
        ffn=ffn,
        vocab=whole(cells, "vocab", 50304),
        gated=gated,
        experts=experts,
        experts_per_token=whole(cells, "experts_per_token", min(2, experts)) if experts else 0,
        moe_ffn=whole(cells, "moe_ffn", ffn) if experts else 0,
        shared_experts=optional(cells, "shared_experts") or 0,
        dense_layers=optional(cells, "dense_layers") or 0,
        head_size=optional(cells, "head_size") or 0,
        tied=flag(cells, "tied", not gated),
        qkv_bias=flag(cells, "qkv_bias", False),
        window=optional(cells, "window") or None,
    )


def usual_heads(hidden: int) -> int:
    """The divisor of the width nearest to a head size of 128: 32 for 4096, 40 for 5000."""
    near = max(1, hidden // 128)
    return min(
        (n for n in range(1, 2 * near + 1) if hidden % n == 0), key=lambda n: abs(n - hidden / 128)
    )


def refuse_experts(cells: Mapping[str, str]) -> None:
    """Refuses expert columns other than 0 for a dense model."""
    for field in ("experts_per_token", "moe_ffn", "shared_experts", "dense_layers"):
        if optional(cells, field):
            raise InputError(
                f"{field} is {cells[field]}, but experts is 0: give experts, or leave {field} empty"
            )


def plan_of(cells: Mapping[str, str], chip: Chip) -> Plan:
    """The plan without microbatch and chunks, which depend on the batch."""
    rates = [kind for kind, _ in chip.flops]
    precision = word(cells, "precision") or ("bf16" if "bf16" in rates else rates[0])
    tp, cp, pp = (whole(cells, axis, 1) for axis in ("tp", "cp", "pp"))
    return Plan(
        tp=tp,
        sp=flag(cells, "sp", False),
        cp=cp,
        pp=pp,
        dp=data_ranks(cells, tp * cp * pp),
        ep=whole(cells, "ep", 1),
        zero=optional(cells, "zero") or 0,
        recompute=word(cells, "recompute") or "none",
        precision=precision,
        software=word(cells, "software") or usual_software(precision, tp * pp),
    )


def data_ranks(cells: Mapping[str, str], others: int) -> int:
    """dp as given or computed from gpus; both must agree."""
    gpus, dp = optional(cells, "gpus"), optional(cells, "dp")
    if gpus is None:
        return 1 if dp is None else dp
    if gpus < 1 or gpus % others:
        below = max(1, gpus // others) * others
        raise InputError(
            f"gpus is {gpus}, not a multiple of tp·cp·pp = {others}: use {below} or "
            f"{below + others}, or change tp, cp or pp"
        )
    if dp is not None and dp * others != gpus:
        raise InputError(
            f"dp is {dp}, but gpus {gpus} / (tp·cp·pp = {others}) is {gpus // others}: "
            "use that, or leave dp empty"
        )
    return gpus // others


def usual_software(precision: str, model_parallel: int) -> str:
    """The usual software for such a run; `Plan` explains the names."""
    if precision == "fp16":
        return "2022"
    return "fused" if model_parallel > 1 else "eager"


def with_chunks(plan: Plan, cells: Mapping[str, str], model: Model, batch: int) -> Plan:
    """Fills in vpp and schedule; if one is empty it follows from the other."""
    schedule, vpp = word(cells, "schedule") or None, optional(cells, "vpp")
    if vpp is None:
        settled = schedule not in (None, "interleaved")
        vpp = 1 if settled else most_chunks(plan, model, batch)
    return replace(plan, vpp=vpp, schedule=schedule or ("interleaved" if vpp > 1 else "1f1b"))


def most_chunks(plan: Plan, model: Model, batch: int) -> int:
    """The most chunks per rank, up to 8, that divide the layers (or layers + 2) evenly."""
    if plan.pp == 1 or batch // max(1, plan.dp * plan.micro_batch) < plan.pp:
        return 1
    both = (model.layers, model.layers + 2)
    even = [v for v in range(1, 9) if any(layers % (plan.pp * v) == 0 for layers in both)]
    return max(even, default=1)


def with_micro_batch(run: Run) -> Run:
    """The largest microbatch of 8, 4, 2, 1 that divides a rank's batch and fits in memory."""
    local = run.global_batch // run.plan.dp
    for size in (8, 4, 2):
        if local % size == 0:
            bigger = replace(run, plan=replace(run.plan, micro_batch=size))
            if run.chip.memory and peak_memory(bigger).total < 0.8 * run.chip.memory:
                return bigger
    return run


def needed(cells: Mapping[str, str], field: str, remedy: str) -> str:
    if not cells.get(field):
        raise InputError(f"{field} is missing: give {remedy}")
    return cells[field]


def optional(cells: Mapping[str, str], field: str) -> int | None:
    """A whole number of 0 or more, or None if the cell is empty. 8.0 is 8."""
    text = cells.get(field, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or value != value // 1:
        raise InputError(f"{field} is '{text}': a whole number is needed, 0 or more")
    largest = LARGEST_HIDDEN if field == "hidden" else LARGEST
    if value > largest:
        raise InputError(
            f"{field} is '{text}': the planner takes {largest:,.0f} at most, give less"
        )
    return int(value)


def whole(cells: Mapping[str, str], field: str, default: int | None) -> int:
    """A whole number of 1 or more; required if there is no default."""
    value = optional(cells, field)
    if value is None and default is None:
        raise InputError(f"{field} is missing: give a whole number, 1 or more")
    value = default if value is None else value
    if value < 1:
        raise InputError(f"{field} is {value}: it must be 1 or more")
    return value


def word(cells: Mapping[str, str], field: str) -> str:
    """A case-insensitive name: BF16 is bf16."""
    return cells.get(field, "").lower()


def flag(cells: Mapping[str, str], field: str, default: bool) -> bool:
    text = cells.get(field, "").lower()
    if text not in ("", "0", "1", "0.0", "1.0", "true", "false"):
        raise InputError(f"{field} is '{text}': it must be 0 or 1")
    return default if not text else text in ("1", "1.0", "true")
