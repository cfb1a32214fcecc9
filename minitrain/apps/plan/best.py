"""`python -m minitrain plan`: the best parallel layouts of a run on a cluster, and their costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from minitrain.apps.kinds import one_of
from minitrain.apps.options import Option
from minitrain.apps.plan.options import (
    BATCH_TOKENS,
    GPUS,
    TOKENS_PER_PARAMETER,
    Batch,
    Carbon,
    ChipName,
    Json,
    ModelName,
    Precision,
    Pue,
    Seq,
    Tokens,
    prices,
    shape_of,
)
from minitrain.apps.tables import say, show_json, show_table
from minitrain.errors import InputError
from minitrain.model.config import PRESETS
from minitrain.planning.money.prices import Price, offers, price_of

if TYPE_CHECKING:
    from minitrain.planning.money.cost import Cost
    from minitrain.planning.run import Run
    from minitrain.planning.search import Found
    from minitrain.planning.step.step import Step


DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}  # of `train`


@dataclass(frozen=True)
class PlanOptions:
    model: ModelName = "llama3-8b"
    chip: ChipName = "H100-SXM-80GB"
    gpus: Annotated[int, Option(GPUS, "The number of chips.")] = 64
    seq: Seq = 8192
    batch: Batch = None
    tokens: Tokens = None
    precision: Precision = "bf16"
    price: Annotated[
        Price | None, Option(prices("--price"), "Dollars a chip-hour.", "data/prices.csv")
    ] = None
    pue: Pue = 1.2
    carbon: Carbon = 400.0
    rank: Annotated[
        str,
        Option(one_of("order", lambda: ("time", "cost")), "Order by time, or by cost."),
    ] = "time"
    json: Json = False

    @property
    def sequences(self) -> int:
        """A batch of about 4M tokens that the cluster divides, unless one is given."""
        return self.batch or max(1, round(BATCH_TOKENS / self.seq / self.gpus)) * self.gpus

    @property
    def training_tokens(self) -> float:
        from minitrain.measure.parameters import parameter_count

        return self.tokens or TOKENS_PER_PARAMETER * parameter_count(shape_of(self.model), self.seq)


@dataclass(frozen=True)
class Answer:
    found: Found
    costs: list[Cost]


def answer(options: PlanOptions) -> Answer:
    """By time: on all chips. By cost: on the cheapest number, found by halving."""
    if options.rank == "time":
        found = searched(options, options.gpus)
        return Answer(found, [cost(options, step) for step in found.steps])
    halved = (options.gpus / 2**i for i in range(options.gpus.bit_length()))
    sizes = [int(n) for n in halved if n == int(n)]
    tried = [found for n in sizes if (found := fitting(options, n))]
    if not tried:
        searched(options, options.gpus)  # says why nothing fits
    best = min(tried, key=lambda found: cost(options, found.steps[0]).chip_hours)
    return Answer(best, [cost(options, step) for step in best.steps])


def fitting(options: PlanOptions, gpus: int) -> Found | None:
    """None where no plan fits this few chips."""
    try:
        return searched(options, gpus)
    except InputError:
        return None


def searched(options: PlanOptions, gpus: int) -> Found:
    from minitrain.planning.search import search

    return search(
        shape_of(options.model), options.chip, gpus, options.seq, options.sequences,
        options.precision,
    )  # fmt: skip


def cost(options: PlanOptions, step: Step) -> Cost:
    from minitrain.planning.money.cost import Failures, Site, cost_of

    listed = price_of(options.chip) if offers(options.chip, "on-demand") else None
    site = Site(options.pue, options.carbon)
    return cost_of(step, options.training_tokens, options.price or listed, site, Failures())


def print_answer(options: PlanOptions, given: Answer) -> None:
    if options.json:
        show_json(as_plain(options, given))
        return
    best, found = given.found.steps[0], given.found
    say(title(options, given))
    show_table(map(cells, found.steps, found.reasons), left=["plan", "why not"])
    say(parts_bar(best))
    if best.run.plan.pp > 1:
        say(pipeline_picture(best, Console().width))
    say(cost_text(options, given.costs[0]))
    say(*run_lines(options.model, found.steps))


def as_plain(options: PlanOptions, given: Answer) -> dict:
    from minitrain.planning.predict import as_dict
    from minitrain.planning.search import plan_in_words

    plans = [
        {"plan": plan_in_words(step.run.plan), "cut": asdict(step.run.plan), "why": reason,
         **as_dict(step), "cost": asdict(cost)}
        for step, reason, cost in zip(given.found.steps, given.found.reasons, given.costs)
    ]  # fmt: skip
    return {
        "model": options.model, "chip": options.chip, "legal": given.found.legal,
        "fitting": given.found.fitting, "tokens": options.training_tokens, "plans": plans,
    }  # fmt: skip


def title(options: PlanOptions, given: Answer) -> str:
    from minitrain.measure.parameters import parameter_count

    run = given.found.steps[0].run
    kind = "" if run.chip.calibrated else " (constants of its kin: no run on it was fitted)"
    return (
        f"{options.model}, {parameter_count(run.model, run.seq) / 1e9:.3g}B parameters, on "
        f"{run.gpus} {run.chip.name}{kind}; {run.global_batch} sequences of {run.seq} a step. "
        f"{given.found.legal:,} legal plans, {given.found.fitting:,} fit."
    )


def cells(step: Step, reason: str) -> dict[str, str]:
    from minitrain.planning.search import plan_in_words

    return {
        "plan": plan_in_words(step.run.plan),
        "step": f"{step.seconds:.2f} s",
        "MFU": f"{step.mfu:.1%}",
        "memory": f"{step.memory.total / 2**30:.0f} GiB",
        "why not": reason,
    }


def parts_bar(step: Step, width: int = 40) -> str:
    """A step's seconds by part, one line each."""
    lines = ["Where the step goes, on the busiest rank:"]
    for part, seconds in sorted(step.parts.items(), key=lambda item: -item[1]):
        share = seconds / step.seconds
        if share >= 0.001:
            lines.append(f"  {part:12s} {'█' * round(share * width):{width}s} {100 * share:5.1f}%")
    return "\n".join(lines)


def pipeline_picture(step: Step, columns: int = 80) -> str:
    """The first microbatches of up to eight stages: forward, backward, and idle time."""
    from minitrain.planning.step.step import timeline

    plan = step.run.plan
    clock = timeline(step.run, microbatches=min(step.run.microbatches, 2 * plan.pp))
    width = max(20, min(columns, 120) - len("  rank   0 ") - 1)
    scale = width / clock.makespan
    lines = [f"The pipeline with {min(step.run.microbatches, 2 * plan.pp)} microbatches:"]
    for rank in range(0, plan.pp, max(1, plan.pp // 8)):
        row = [" "] * (width + 1)
        for event in clock.ranks[rank]:
            for i in range(int(event.start * scale), max(int(event.end * scale), 1)):
                row[i] = {"F": "░", "B": "█", "W": "▒"}[event.operation.kind]
        lines.append(f"  rank {rank:3d} {''.join(row).rstrip()}")
    return "\n".join([*lines, "           ░ forward  █ backward"])


def run_lines(model: str, steps: list[Step]) -> list[str]:
    """The command that trains by the best plan that `train` has."""
    from minitrain.planning.search import plan_in_words

    for step in steps:
        command = train_command(model, step.run)
        if command is not None:
            better = step is not steps[0]
            whose = f"The first plan that `train` has, {plan_in_words(step.run.plan)}: " * better
            return [f"{whose}{command}"]
    return ["`train` has none of these plans: its meshes have ZeRO's stage 1, and bfloat16."]


def train_command(model: str, run: Run) -> str | None:
    """None for a plan that `train` does not run: see `TrainOptions`."""
    plan, words = run.plan, ["python -m minitrain train"]
    cut = plan.tp * plan.cp * plan.pp * plan.ep > 1
    if model not in PRESETS or plan.dp % plan.ep or plan.precision not in DTYPES:
        return None
    if cut and (plan.zero > 1 or plan.precision == "fp8"):
        return None
    if run.gpus > run.per_node:
        nodes = -(-run.gpus // run.per_node)
        words = [f"torchrun --nnodes {nodes} --nproc-per-node {run.per_node} -m minitrain train"]
    axes = {"dp": plan.dp // plan.ep, "tp": plan.tp, "pp": plan.pp, "cp": plan.cp, "ep": plan.ep}
    words += [f"--preset {model}"] + ([] if cut else [f"--ranks {plan.dp}"] * (plan.dp > 1))
    words += [f"--{axis} {size}" for axis, size in axes.items() if cut and size > 1]
    words += ["--sequence"] if plan.sp else []
    words += [f"--schedule {plan.schedule}"] if plan.pp > 1 else []
    words += [f"--chunks {plan.vpp}"] if plan.vpp > 1 else []
    words += [f"--zero {plan.zero}"] if plan.zero else []
    words += [f"--recompute {plan.recompute}"] if plan.recompute != "none" else []
    words += [f"--dtype {DTYPES[plan.precision]}", f"--batch {run.global_batch}"]
    accumulate = run.global_batch // (plan.dp * plan.micro_batch)
    return " ".join([*words, f"--length {run.seq} --accumulate {accumulate}"])


def cost_text(options: PlanOptions, cost: Cost) -> str:
    money = "no price known: give --price"
    if cost.usd:
        money = (
            f"${cost.usd.typical:,.0f} (${cost.usd.low:,.0f} to ${cost.usd.high:,.0f}; "
            f"{cost.usd.source})"
        )
    energy = "no power known for the chip"
    if cost.kwh is not None:
        energy = (
            f"{cost.kwh / 1000:,.3g} MWh at the chips' power limit, {cost.tonnes_co2:,.3g} t of CO2"
        )
    return (
        f"{options.training_tokens:.3g} tokens: {cost.days:.3g} days, {cost.chip_hours:,.0f} "
        f"chip-hours at {100 * cost.goodput:.1f}% goodput, {money}; {energy}"
    )
