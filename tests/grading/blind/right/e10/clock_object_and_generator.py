# right: a class with one property for each part of the step, a generator of legal plans and heapq.nsmallest for the search; the bubble as its fraction of a total
import heapq

from minitrain.planning.run import Plan, Run, make_run
from minitrain.planning.step.layer_times import elementwise_seconds


class Paper:
    """One run's step, part by part."""

    def __init__(self, run, fabric):
        self.run, self.fabric = run, fabric
        self.model, self.plan = run.model, run.plan
        self.repeats = run.plan.recompute == "full"

    def parameters(self):
        m = self.model
        mlp = (3 if m.gated else 2) * m.hidden
        dense = m.layers - m.moe_layers
        fixed = 2 * m.layers * m.hidden * m.head_size * (m.heads + m.kv_heads)
        fixed += dense * mlp * m.ffn + m.hidden * m.vocab
        held, used = m.hidden * (2 * m.layers + 1) + m.hidden * m.vocab, 0
        if m.moe_layers:
            fixed += m.moe_layers * (m.hidden * m.experts + m.shared_experts * mlp * m.moe_ffn)
            held += m.moe_layers * m.experts * mlp * m.moe_ffn
            used += m.moe_layers * m.experts_per_token * mlp * m.moe_ffn
        return fixed + held, fixed + used

    @property
    def passes(self):
        return 3 + self.repeats

    @property
    def turns(self):
        """Layers that a rank runs in one pass."""
        return self.run.microbatches * self.model.layers / self.plan.pp

    @property
    def matmul(self):
        peak = self.run.chip.peak(self.plan.precision)
        rates = self.run.chip.constants
        a_token = 2 * self.parameters()[1] / (peak * rates.matmul)
        scores = 4 * self.model.layers * self.model.hidden * self.run.seq
        a_token += scores / (peak * rates.attention)
        return self.passes * self.run.tokens * a_token / self.run.gpus

    @property
    def elementwise(self):
        return elementwise_seconds(self.run) * self.turns * self.passes

    @property
    def tensor(self):
        nbytes = 2 * self.run.local_tokens * self.model.hidden
        one = self.fabric.seconds("all_reduce", nbytes, self.plan.tp, 1)
        sweeps = 3 if self.repeats else 2  # forward, backward, forward again
        return sweeps * self.turns * 2 * one

    @property
    def bubble(self):
        rounds = self.plan.vpp * self.run.microbatches
        busy = self.matmul + self.elementwise + self.tensor
        return busy * (self.plan.pp - 1) / rounds

    @property
    def data(self):
        share = self.parameters()[0] / (self.plan.tp * self.plan.pp)
        group = self.plan.dp * self.plan.cp, self.plan.tp
        if self.plan.zero < 3:
            return self.fabric.seconds("all_reduce", 4 * share, *group)
        once = 2 * self.fabric.seconds("all_gather", 2 * share, *group)
        once += self.fabric.seconds("reduce_scatter", 4 * share, *group)
        shows = once * self.run.microbatches - (self.matmul + self.elementwise)
        return shows if shows > 0 else 0.0


def step_parts(run: Run, fabric) -> dict[str, float]:
    paper = Paper(run, fabric)
    names = ("matmul", "elementwise", "tensor", "bubble", "data")
    return {name: getattr(paper, name) for name in names}


def legal_plans(model, gpus, batch):
    for pp in (p for p in (16, 8, 4, 2, 1) if model.layers % p == 0):
        for tp in (t for t in (8, 4, 2, 1) if model.heads % t == 0):
            dp, rest = divmod(gpus, tp * pp)
            if rest or dp == 0:
                continue
            for micro in (m for m in (4, 2, 1) if batch % (dp * m) == 0):
                for zero in (1, 3) if pp == 1 else (1,):
                    for recompute in ("full", "none"):
                        yield Plan(
                            tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero,
                            recompute=recompute, micro_batch=micro,
                        )  # fmt: skip


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    room = 0.92 * chip.memory
    every = (make_run(chip, model, plan, seq, batch) for plan in legal_plans(model, gpus, batch))
    fitting = [run for run in every if memory_of(run) <= room]
    return heapq.nsmallest(best, fitting, key=seconds_of)
