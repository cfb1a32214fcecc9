"""The output of `plan`: the best cuts of a run over a cluster, and the cost of the
first of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich.console import Console

from minitrain.apps.plan.show import say, show_json, show_table
from minitrain.errors import InputError
from minitrain.measure.parameters import parameter_count
from minitrain.planning.columns import as_dict
from minitrain.planning.money.cost import Cost, Failures, Site, cost_of
from minitrain.planning.money.prices import Price
from minitrain.planning.run import Model
from minitrain.planning.search import Found, plan_in_words, search
from minitrain.planning.step.step import Step

BATCH_TOKENS = 4e6
TOKENS_PER_PARAMETER = 20  # Chinchilla's


@dataclass(frozen=True)
class Question:
    model: Model
    name: str
    chip: str
    gpus: int
    seq: int
    batch: int | None
    tokens: float | None
    precision: str
    price: Price | None
    site: Site
    by_cost: bool

    @property
    def sequences(self) -> int:
        """A batch of about 4M tokens that the cluster divides, unless one is given."""
        return self.batch or max(1, round(BATCH_TOKENS / self.seq / self.gpus)) * self.gpus

    @property
    def training_tokens(self) -> float:
        return self.tokens or TOKENS_PER_PARAMETER * parameter_count(self.model, self.seq)


@dataclass(frozen=True)
class Answer:
    found: Found
    costs: list[Cost]


def answer(question: Question) -> Answer:
    """By time: on all chips. By cost: on however many of them, halved, train the cheapest."""
    if not question.by_cost:
        found = searched(question, question.gpus)
        return Answer(found, [cost(question, step) for step in found.steps])
    tried = [found for n in halvings(question.gpus) if (found := fitting(question, n))]
    if not tried:
        searched(question, question.gpus)  # says why nothing fits
    best = min(tried, key=lambda found: cost(question, found.steps[0]).chip_hours)
    return Answer(best, [cost(question, step) for step in best.steps])


def halvings(gpus: int) -> list[int]:
    return [gpus // 2**i for i in range(gpus.bit_length()) if gpus % 2**i == 0]


def fitting(question: Question, gpus: int) -> Found | None:
    """None where no plan fits so few."""
    try:
        return searched(question, gpus)
    except InputError:
        return None


def searched(question: Question, gpus: int) -> Found:
    return search(
        question.model, question.chip, gpus, question.seq, question.sequences, question.precision
    )


def cost(question: Question, step: Step) -> Cost:
    return cost_of(step, question.training_tokens, question.price, question.site, Failures())


def print_answer(question: Question, given: Answer, json: bool) -> None:
    if json:
        show_json(as_plain(question, given))
        return
    best, found = given.found.steps[0], given.found
    say(title(question, given))
    show_table(map(cells, found.steps, found.reasons), left=["plan", "why not"])
    say(parts_bar(best))
    if best.run.plan.pp > 1:
        say(pipeline_picture(best, Console().width))
    say(cost_text(question, given.costs[0]))


def as_plain(question: Question, given: Answer) -> dict:
    plans = [
        {"plan": plan_in_words(step.run.plan), "cut": asdict(step.run.plan), "why": reason,
         **as_dict(step), "cost": asdict(cost)}
        for step, reason, cost in zip(given.found.steps, given.found.reasons, given.costs)
    ]  # fmt: skip
    return {
        "model": question.name, "chip": question.chip, "legal": given.found.legal,
        "fitting": given.found.fitting, "tokens": question.training_tokens, "plans": plans,
    }  # fmt: skip


def title(question: Question, given: Answer) -> str:
    run = given.found.steps[0].run
    kind = "" if run.chip.calibrated else " (constants of its kin: no run on it was fitted)"
    return (
        f"{question.name}, {parameter_count(run.model, run.seq) / 1e9:.3g}B parameters, on "
        f"{run.gpus} {run.chip.name}{kind}; {run.global_batch} sequences of {run.seq} a step. "
        f"{given.found.legal:,} legal plans, {given.found.fitting:,} fit."
    )


def cells(step: Step, reason: str) -> dict[str, str]:
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
    """The first microbatches of up to eight stages: forwards, backwards, and waiting."""
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


def cost_text(question: Question, cost: Cost) -> str:
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
        f"{question.training_tokens:.3g} tokens: {cost.days:.3g} days, {cost.chip_hours:,.0f} "
        f"chip-hours at {100 * cost.goodput:.1f}% goodput, {money}; {energy}"
    )
