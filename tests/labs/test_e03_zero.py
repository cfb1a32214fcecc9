"""The checks of lab e03: ZeRO, graded by what a rank holds, what it sends, and in which order."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check

from .probes import e03_zero as probes

LAB = "e03_zero"
SIZES = {
    "cpu": {
        "preset": "1M",
        "layers": 4,
        "ranks": 4,
        "batch": 2,
        "length": 64,
        "deep": 24,
        "steps": 2,
        "repeats": 5,
        "parameters_each": 3600,
        "tokens_each": 64,
    },
    "test": {"layers": 2, "deep": 10, "steps": 1, "repeats": 1},
    "gpu": {"preset": "30M", "layers": 8, "batch": 8, "length": 512},
    "multi": {"preset": "100M", "layers": 12, "batch": 16, "length": 1024},
}
HIDDEN = (
    "minitrain/parallel/zero/plain.py",
    "minitrain/parallel/zero/unit.py",
    "minitrain/parallel/zero/sharded.py",
    "minitrain/parallel/zero/stages_1_2.py",
    "minitrain/parallel/zero/stage_3.py",
    "minitrain/parallel/zero/optimizer.py",
    "minitrain/parallel/zero/torch_optimizers.py",
    "minitrain/parallel/zero/norm.py",
    "minitrain/parallel/zero/state.py",
    "minitrain/parallel/zero/full_state.py",
    "minitrain/memory/optimizer_offload.py",
)
STEPS = 3


# From here on, the grader's own process.
def batches_of(ranks, steps=STEPS):
    return [
        [torch.randn(3, probes.WIDTHS[0], dtype=torch.float64) for _ in range(ranks)]
        for _ in range(steps)
    ]


def one_process(batches, scale=1.0, only=None, keep=False):
    """Parameters after the steps on all ranks' batches; the arguments make likely mistakes."""
    model = probes.network()
    optimizer = probes.ADAMW(model.parameters())
    for step in batches:
        chosen = step if only is None else [step[only]]
        (scale * sum(probes.squared(model, x) for x in chosen) / len(chosen)).backward()
        optimizer.step()
        if not keep:
            optimizer.zero_grad()
    return probes.values(model)


def same_on_all(results, ranks):
    for rank, result in enumerate(results):
        for mine, first in zip(result["parameters"], results[0]["parameters"]):
            expect.that(
                torch.equal(mine, first),
                f"after {STEPS} steps rank {rank} of {ranks} has other parameters than rank 0: "
                "each has moved only its own part; all_gather the shards into `full` after the step",
            )


def equal_parameters(results, batches):
    ranks, want = len(results), one_process(batches)
    wrong = {
        "that is the step of the *sum* over ranks: average (op='avg')": {"scale": ranks},
        "that is what one rank's own gradients give: they were never reduced": {"only": 0},
        "that is what gradients give that add up over the steps: forget them after each": {
            "keep": True
        },
        "that is the step of an average that was divided by the number of ranks twice": {
            "scale": 1 / ranks
        },
    }
    variants = [(one_process(batches, **how), words) for words, how in wrong.items()]
    initial = (
        probes.values(probes.network()),
        "those are the initial parameters: nothing has moved them",
    )
    for rank, result in enumerate(results):
        expect.equal(
            result["parameters"],
            want,
            what=f"the parameters of rank {rank} of {ranks} after {STEPS} AdamW steps",
            hints=[*variants, initial],
        )


def shares(ranks):
    """Elements of each unit's shard, and of the whole units with their padding."""
    sizes = [m * n + n for m, n in pairwise(probes.WIDTHS)]
    own = [-(-size // ranks) for size in sizes]
    return own, sum(own) * ranks


class TestZero1(Exercise):
    """Stage 1: the optimizer state is sharded"""

    name = "Zero1"
    reference = "minitrain.parallel.zero.plain:Zero1"
    hidden = HIDDEN

    @check(points=5, title="three AdamW steps equal one process (2 and 3 ranks, float64)")
    def test_parameters(self, submission):
        for ranks in (2, 3):
            batches = batches_of(ranks)
            results = submission.launch(probes.zero1_steps, batches, ranks=ranks)
            same_on_all(results, ranks)
            for result in results:
                expect.that(
                    result["left"] == 0,
                    f"after step() {result['left']} parameters still have a gradient: the next backward "
                    "would add to it. Set `.grad = None` on each",
                )
            equal_parameters(results, batches)

    @check(points=4, title="a rank holds 1/N of the optimizer state")
    def test_state(self, submission):
        for ranks in (2, 3):
            own, _ = shares(ranks)
            for rank, result in enumerate(
                submission.launch(probes.zero1_steps, batches_of(ranks), ranks=ranks)
            ):
                most = 16 * sum(own) + 8 * 2 * len(
                    probes.WIDTHS
                )  # two float64 an element; step counters
                expect.that(
                    result["state"] <= most,
                    f"rank {rank} of {ranks} holds {result['state']} bytes of optimizer state, and its shards' "
                    f"is {16 * sum(own)} (two moments of {sum(own)} elements): it is not sharded. Give "
                    "`make` the shards, and nothing else",
                )
                expect.that(
                    result["state"] >= 16 * sum(own),
                    f"rank {rank} of {ranks} holds {result['state']} bytes of optimizer state; the two moments "
                    f"of its {sum(own)} elements are {16 * sum(own)}: is a unit left out?",
                )

    @check(points=3, title="it sends 2(N-1)/N of the parameters: no all-reduce")
    def test_sent(self, submission):
        ranks = 3
        results = submission.launch(probes.zero1_steps, batches_of(ranks), ranks=ranks)
        _, whole = shares(ranks)
        for rank, trace in enumerate(results.traces):
            want = 2 * (ranks - 1) * 8 * whole // ranks * STEPS
            kinds = sorted({op.kind for op in trace.ops})
            sent = trace.bytes_sent()
            words = (
                "an all-reduce leaves every rank the whole sum, of which it needs 1/N: reduce_scatter"
                if trace.count("all_reduce")
                else "a reduce_scatter and an all_gather a unit"
            )
            expect.that(
                trace.count("all_reduce") + trace.count("reduce_scatter") or not trace.count(),
                f"rank {rank} sent {', '.join(kinds)} only: the gradients were never reduced",
            )
            expect.that(
                sent == want,
                f"rank {rank} sent {sent} bytes in {STEPS} steps by {', '.join(kinds)}; 2(N-1)/N of the gradients "
                f"and parameters is {want}: {words}",
            )


class TestReduceUnit(Exercise):
    """Stage 2: of the gradients, the own part is kept"""

    name = "reduce_unit"
    reference = "minitrain.parallel.zero.plain:reduce_unit"
    hidden = HIDDEN

    @check(points=4, title="shard.grad is this rank's part of the average; microbatches add up")
    def test_gradient(self, submission):
        for ranks in (2, 3):
            for steps in (1, 2):
                batches = batches_of(ranks, steps)
                results = submission.launch(probes.reduced, batches, ranks=ranks)
                self.equal_parts(results, batches)

    @check(points=4, title="nothing else is left: S/N elements a unit, in a memory of their own")
    def test_held(self, submission):
        ranks = 3
        own, _ = shares(ranks)
        for rank, units in enumerate(
            submission.launch(probes.reduced, batches_of(ranks), ranks=ranks)
        ):
            for number, (unit, elements) in enumerate(zip(units, own)):
                expect.that(
                    unit["left"] == 0,
                    f"rank {rank}, unit {number}: {unit['left']} parameters still have their whole gradient: "
                    "set `parameter.grad = None`, or stage 2 saves nothing",
                )
                expect.that(
                    unit["held"] == 8 * elements,
                    f"rank {rank}, unit {number}: shard.grad keeps {unit['held']} bytes alive for {8 * elements}: "
                    "a slice keeps the whole tensor behind it; reduce_scatter into a tensor of its own",
                )

    @check(points=2, title="one reduce-scatter a unit")
    def test_messages(self, submission):
        ranks = 3
        results = submission.launch(probes.reduced, batches_of(ranks, 1), ranks=ranks)
        _, whole = shares(ranks)
        for rank, trace in enumerate(results.traces):
            kinds = [op.kind for op in trace.ops]
            expect.that(
                kinds == ["reduce_scatter"] * 3,
                f"rank {rank} made {', '.join(kinds) or 'no messages'} for three units: one reduce_scatter each. "
                "An all-reduce sends twice as much and leaves the whole sum on each rank",
            )
            want = (ranks - 1) * 8 * whole // ranks
            expect.that(
                trace.bytes_sent() == want,
                f"rank {rank} sent {trace.bytes_sent()} bytes, (N-1)/N of the gradients is {want}",
            )

    def equal_parts(self, results, batches):
        ranks = len(batches[0])
        sums = [
            self.flat(batches, range(ranks), ranks),
            self.flat(batches[-1:], range(ranks), ranks),
        ]
        for rank, units in enumerate(results):
            alone = self.flat(batches, [rank], ranks)
            for number, unit in enumerate(units):
                total, last = (s[number] for s in sums)
                part = total.chunk(ranks)[rank] / ranks
                expect.that(
                    unit["gradient"] is not None, f"rank {rank}, unit {number}: shard.grad is None"
                )
                expect.equal(
                    unit["gradient"],
                    part,
                    what=f"rank {rank} of {ranks}, unit {number}, {len(batches)} microbatches: shard.grad",
                    hints=[
                        (part * ranks, "that is the sum over ranks: op='avg'"),
                        (
                            last.chunk(ranks)[rank] / ranks,
                            "that is the last microbatch's alone: add to a shard.grad that is there",
                        ),
                        (
                            alone[number].chunk(ranks)[rank],
                            "that is the rank's own gradient: it was never reduced",
                        ),
                        (
                            total.chunk(ranks)[0] / ranks,
                            "that is rank 0's part: take that of group.rank",
                        ),
                        (total / ranks, "that is the whole average: keep this rank's part of it"),
                    ],
                )

    @staticmethod
    def flat(batches, ranks, size):
        """The gradients of these ranks, summed over them and over microbatches, unit by unit."""
        model = probes.network()
        for step in batches:
            for rank in ranks:
                probes.squared(model, step[rank]).backward()
        own, _ = shares(size)
        out = []
        for layer, length in zip(model.layers, own):
            flat = torch.cat([p.grad.flatten() for p in layer.parameters()])
            out.append(F.pad(flat, (0, length * size - flat.numel())))
        return out


class TestShardedUnit(Exercise):
    """Stage 3: parameters that come and go"""

    name = "ShardedUnit"
    reference = "minitrain.parallel.zero.plain:ShardedUnit"
    hidden = HIDDEN

    @check(points=5, title="gather gives the parameters, and after an update the new ones")
    def test_values(self, submission):
        want = probes.values(probes.network().layers[1])
        for ranks in (2, 3):
            for rank, result in enumerate(submission.launch(probes.gathered, ranks=ranks)):
                where = f"rank {rank} of {ranks}"
                expect.that(
                    "empty" not in result,
                    f"{where}: after {result.get('empty')} the parameters have no memory: gather() must give `full` its "
                    "bytes, and free() must make the next gather send again (self.work = None)",
                )
                expect.equal(result["values"], want, what=f"{where}: the parameters after gather()")
                expect.equal(
                    result["tripled"],
                    [3 * w for w in want],
                    what=f"{where}: every shard was tripled between free() and gather(); the parameters",
                    hints=[
                        (
                            want,
                            "those are the old ones: free() must make the next gather send again",
                        )
                    ],
                )

    @check(points=4, title="freed, it holds the shard alone; the parameters stay views of `full`")
    def test_bytes(self, submission):
        for ranks in (2, 3):
            own, _ = shares(ranks)
            for rank, result in enumerate(submission.launch(probes.gathered, ranks=ranks)):
                expect.that(
                    result["shard"] == 8 * own[1],
                    f"rank {rank} of {ranks}: the shard keeps {result['shard']} bytes alive, not {8 * own[1]}",
                )
                for when in ("at first", "freed", "freed again"):
                    if when not in result:
                        continue
                    expect.that(
                        result[when] == 0,
                        f"rank {rank} of {ranks}, {when}: the storage of `full` has {result[when]} bytes. To drop a "
                        "name frees nothing while the graph of a forward holds the tensor: shrink it, "
                        "full.untyped_storage().resize_(0)",
                    )
                expect.that(
                    result.get("same"),
                    f"rank {rank} of {ranks}: the parameters are no views of `full` any more; do not make new "
                    "tensors, give the old storage its bytes back",
                )

    @check(points=3, title="start_gather does not wait, and a second one sends nothing")
    def test_start(self, submission):
        for rank, result in enumerate(submission.launch(probes.started, ranks=2)):
            expect.that(
                len(result["waited"]) > 0,
                f"rank {rank}: start_gather() sent nothing, so nothing can be prefetched",
            )
            expect.that(
                not any(result["waited"]),
                f"rank {rank}: start_gather() waited for its message: issue it with async_op=True and keep the work; "
                "gather() waits",
            )
            expect.that(
                result["count"] == 1,
                f"rank {rank}: two start_gather() and two gather() sent {result['count']} messages, expected 1: where "
                "a work is there, nothing is to be sent",
            )

    @check(points=2, title="free waits for what is still arriving")
    def test_unused(self, submission):
        words = (
            "start_gather(), then free() without a gather between: the memory is gone while data is "
            "still arriving in it. free() must wait for the work first"
        )
        with expect.because({"died": words}):
            results = submission.launch(probes.unused, ranks=2)
        for rank, waited in enumerate(results):
            expect.that(waited and all(waited), f"rank {rank}: {words}")


class TestZero3(Exercise):
    """Stage 3: the next unit travels while this one computes"""

    name = "Zero3"
    reference = "minitrain.parallel.zero.plain:Zero3"
    hidden = HIDDEN

    @check(points=4, title="three AdamW steps equal one process (2 and 3 ranks, float64)")
    def test_parameters(self, submission):
        for ranks in (2, 3):
            batches = batches_of(ranks)
            results = submission.launch(probes.zero3_steps, batches, ranks=ranks, timeout=8)
            for result in results:
                expect.that(
                    result["left"] == 0,
                    f"after backward {result['left']} parameters still have their whole gradient: "
                    "reduce_unit(unit) when they are complete",
                )
                expect.that(
                    result["after backward"] == 0,
                    f"after backward {result['after backward']} units are still full: the next step would compute "
                    "with their old parameters",
                )
            equal_parameters(results, batches)

    @check(points=5, title="the next unit is on its way before this one computes, both ways")
    def test_prefetch(self, submission):
        results = submission.launch(probes.zero3_steps, batches_of(2, 1), ranks=2, timeout=8)
        for rank, result in enumerate(results):
            lines = [tuple(line[:2]) for line in result["log"]]
            last = len(probes.WIDTHS) - 2
            pairs = [("forward", k, k + 1) for k in range(last)]
            pairs += [("backward", k, k - 1) for k in range(last, 0, -1)]
            for what, number, following in pairs:
                now = lines.index((what, number))
                begin = max((i for i in range(now) if lines[i] == ("free", following)), default=0)
                before = lines[begin:now]
                expect.that(
                    ("start", following) in before,
                    f"rank {rank}: when the {what} of unit {number} began, the gather of unit {following} was not "
                    f"under way: start_gather() of the next in {what} order belongs into before_{what}",
                )
                expect.that(
                    ("gather", following) not in before,
                    f"rank {rank}: before the {what} of unit {number} it waited for unit {following}: nothing is hidden. "
                    "start_gather() the next one, gather() only the one that computes now",
                )

    @check(points=3, title="two units at a time at most, none between the passes")
    def test_full(self, submission):
        results = submission.launch(probes.zero3_steps, batches_of(2, 1), ranks=2, timeout=8)
        for rank, result in enumerate(results):
            for when in ("after forward", "after backward"):
                expect.that(
                    result[when] == 0,
                    f"rank {rank}, {when}: {result[when]} units are still full. Each must be freed, and the last has "
                    "no next one (units[-1] is the last, not nothing)",
                )
            for line in result["log"]:
                expect.that(
                    len(line) == 2 or line[2] <= 2,
                    f"rank {rank}: at the {line[0]} of unit {line[1]} {line[-1]} units were full: this one and the "
                    "next are two; free() each when its forward and its backward are done",
                )

    @check(points=2, title="a step sends 3(N-1)/N of the parameters")
    def test_sent(self, submission):
        ranks = 3
        _, whole = shares(ranks)
        results = submission.launch(probes.zero3_steps, batches_of(ranks), ranks=ranks, timeout=8)
        for rank, result in enumerate(results):
            kinds = [kind for kind, _ in result["ops"]]
            count = (kinds.count("all_gather"), kinds.count("reduce_scatter"))
            expect.that(
                count == (6, 3),
                f"rank {rank} made {count[0]} all-gathers and {count[1]} reduce-scatters a step for three units: two "
                "and one a unit",
            )
            sent = sum(size for _, size in result["ops"])
            want = 3 * (ranks - 1) * 8 * whole // ranks
            expect.that(sent == want, f"rank {rank} sent {sent} bytes a step, 3(N-1)/N is {want}")


class TestOffloadedStep(Exercise):
    """Optimizer state in a store"""

    name = "offloaded_step"
    reference = "minitrain.parallel.zero.plain:offloaded_step"
    hidden = HIDDEN

    def results(self, submission):
        gradients = [[torch.randn(n, dtype=torch.float64) for n in (5, 9, 4)] for _ in range(3)]
        return gradients, submission.run(probes.offload_steps, gradients)

    @check(points=3, title="three steps move the shards as they would without a store")
    def test_shards(self, submission):
        gradients, result = self.results(submission)
        expect.that(
            not result["problems"],
            f"the store says: {'; '.join(dict.fromkeys(result['problems']))}. Give tensors their memory "
            "(resize_(tensor.nbytes)) before the read, write them after the step, free them after the write",
        )
        want = [nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (5, 9, 4)]
        fresh = [nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (5, 9, 4)]
        optimizer = torch.optim.AdamW(want, lr=1e-2)
        for step in gradients:
            forgetful = torch.optim.AdamW(fresh, lr=1e-2)
            for one, other, gradient in zip(want, fresh, step):
                one.grad, other.grad = gradient, gradient
            optimizer.step()
            forgetful.step()
        expect.equal(
            result["shards"],
            [w.detach() for w in want],
            what="the shards after three steps",
            hints=[
                (
                    [w.detach() for w in fresh],
                    "that is AdamW whose state is new at every step: read it back",
                ),
            ],
        )

    @check(points=4, title="in memory: one unit's state at a time, and none after the step")
    def test_memory(self, submission):
        _, result = self.results(submission)
        expect.that(
            not any(result["after"]),
            f"after the step {result['after'][-1]} bytes of state are in memory: what is written must give "
            "its memory back, tensor.untyped_storage().resize_(0)",
        )
        most = 2 * result["largest"]
        worst = max(result["seen"], default=0)
        expect.that(
            worst <= most and worst < result["total"],
            f"while an optimizer stepped {worst} bytes of state were in memory, of {result['total']} in all; the "
            f"largest unit's is {result['largest']}: read, step, write and free unit by unit",
        )

    @check(points=3, title="a step reads and writes each unit once, and commits at its end")
    def test_store(self, submission):
        _, result = self.results(submission)
        for number, calls in enumerate(result["calls"]):
            writes = [key for what, key in calls if what == "write"]
            reads = [key for what, key in calls if what == "read"]
            expect.that(
                len(writes) == len(set(writes)) == 3,
                f"step {number} wrote {writes}: each of the three units once, under a key of its own",
            )
            wanted = 3 if number else 0
            expect.that(
                len(reads) == wanted and len(set(reads)) == wanted,
                f"step {number} read {reads}: expected {wanted} reads. Nothing is in the store before the first step; "
                "from then on, each unit once",
            )
            expect.that(
                calls[-1][0] == "commit" and [c[0] for c in calls].count("commit") == 1,
                f"step {number}: store.commit() belongs once, at the end, when all is written: until then "
                "the state of the step before is the valid one",
            )


def row_of(table, column, value):
    rows = [row for row in table if row[column] == value]
    expect.that(rows, f"there is no row whose {column} is {value!r}")
    return rows[0]


def formula(stage, size, ranks):
    """Bytes that a rank holds, all float32: parameters, gradients, optimizer."""
    parts = [4 * size, 4 * size, 8 * size]
    shards = {0: (), 1: (2,), 2: (1, 2), 3: (0, 1, 2)}[stage]
    return [part / ranks if i in shards else part for i, part in enumerate(parts)]


class TestHeld(Experiment):
    """Bytes a rank holds, stage by stage"""

    name = "held"

    @check(points=6, title="each stage holds what its formula says, and one unit more at most")
    def test_bytes(self, table):
        for stage in range(4):
            row = row_of(table, "stage", stage)
            want = formula(stage, row["parameters"], row["ranks"])
            names = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
            for name, bound in zip(names, want):
                slack = 0.01 * bound + 4096  # padding, step counters
                expect.that(
                    bound - slack <= row[name] <= bound + slack,
                    f"stage {stage}: {row[name]:,.0f} {name.replace('_', ' ')}, the formula says {bound:,.0f} "
                    f"for {row['parameters']:,} parameters on {row['ranks']} ranks",
                )

    @check(points=3, title="each stage holds less than the one before")
    def test_order(self, table):
        totals = []
        for stage in range(4):
            row = row_of(table, "stage", stage)
            totals.append(row["parameter_bytes"] + row["gradient_bytes"] + row["optimizer_bytes"])
        expect.that(totals == sorted(totals, reverse=True), f"bytes of stages 0 to 3: {totals}")


class TestFits(Experiment):
    """Four times one rank's budget"""

    name = "fits"

    @check(points=5, title="it fails on one rank, and trains on four")
    def test_fits(self, table):
        row = row_of(table, "run", "1 rank")
        expect.that(
            16 * row["parameters"] >= 3.99 * row["budget_bytes"],
            f"the states of {row['parameters']:,} parameters are no four budgets of {row['budget_bytes']:,} bytes",
        )
        expect.that(not row["fits"], "one rank holds 16 P in a budget of 4 P: was the budget on?")
        good = [r for r in table if r["ranks"] == 4 and r["fits"]]
        expect.that(good, "no run on four ranks fitted")
        for r in good:
            expect.that(
                0 < r["peak_bytes"] <= r["budget_bytes"],
                f"{r['run']}: {r['peak_bytes']} bytes at the peak, the budget is {r['budget_bytes']}",
            )

    @check(points=4, title="more ranks alone do not help, sharding does; the loss is one process's")
    def test_loss(self, table):
        row = row_of(table, "run", "4 ranks, DDP")
        expect.that(not row["fits"], "DDP holds as much on each of four ranks as on one")
        for r in table:
            if r["fits"]:
                expect.that(
                    abs(r["loss"] - r["loss_without_budget"]) < 0.01 * r["loss_without_budget"],
                    f"{r['run']}: loss {r['loss']:.4f}, one process without a budget {r['loss_without_budget']:.4f}",
                )


class TestSteps(Experiment):
    """Time and traffic of a step"""

    name = "steps"

    @check(points=4, title="DDP and stages 1 and 2 send 2(N-1)/N of P, stage 3 half as much again")
    def test_sent(self, table):
        for variant, factor in [("DDP", 2), ("stage 1", 2), ("stage 2", 2), ("stage 3", 3)]:
            row = row_of(table, "variant", variant)
            want = factor * (row["ranks"] - 1) / row["ranks"] * 4 * row["parameters"]
            expect.close(
                row["sent_bytes"], want, tol=0.01, what=f"{variant}: bytes a rank sends a step"
            )

    @check(points=3, title="every variant was timed, FSDP2 too")
    def test_time(self, table):
        for variant in ("DDP", "stage 1", "stage 2", "stage 3", "FSDP2"):
            row = row_of(table, "variant", variant)
            expect.that(row["step_seconds"] > 0, f"{variant}: {row['step_seconds']} s is no time")


class TestLargest(Question):
    """The largest model on eight GPUs"""

    name = "largest"

    @check(points=5, title="billions of parameters on 8 x 80 GB, stages 0 to 3, mixed precision")
    def test_value(self, value, records):
        expect.that(
            isinstance(value, (list, tuple)) and len(value) == 4,
            f"got {value!r}: a list of four numbers is asked for, stages 0 to 3",
        )
        per = [16, 4 + 12 / 8, 2 + 14 / 8, 16 / 8]
        want = [80 / b for b in per]
        expect.close(
            list(value),
            want,
            tol=0.02,
            what="billions of parameters",
            hints=[
                ([1e9 * w for w in want], "that is in parameters: divide by 1e9"),
                ([8 * w for w in want], "640 GB are not one memory: each rank has 80 GB"),
                (
                    [80 / b for b in (16, 8 + 8 / 8, 4 + 12 / 8, 2)],
                    "those are the float32 formulas",
                ),
            ],
        )


class TestVolume(Question):
    """What stage 3 costs in traffic"""

    name = "volume"

    @check(points=5, title="stage 3's bytes over DDP's, from your own traces")
    def test_value(self, value, records):
        sent = {row["variant"]: row["sent_bytes"] for row in expect.recorded(records, "steps")}
        for variant in ("DDP", "stage 3"):
            expect.that(variant in sent, f"your table has no row of '{variant}'")
        want = sent["stage 3"] / sent["DDP"]
        expect.close(
            value,
            want,
            tol=0.02,
            what="times as many bytes",
            hints=[
                (1 / want, "that is upside down: divide stage 3 by DDP"),
                (want - 1, "that is how much *more*: the ratio itself is asked for"),
                (3, "3 is in units of P; DDP is at 2"),
            ],
        )


class TestDiskSeconds(Question):
    """What offload costs in time"""

    name = "disk_seconds"

    @check(points=5, title="seconds a step for 70B on 64 ranks, at 5 GB/s a rank")
    def test_value(self, value, records):
        want = 2 * 8 * 70e9 / 64 / 5e9
        expect.close(
            value,
            want,
            tol=0.02,
            what="seconds",
            hints=[
                (want / 2, "the state is read *and* written"),
                (want * 64, "each rank moves its own 1/64 only"),
                (want / 8, "AdamW's two float32 moments are 8 bytes a parameter"),
                (want / 4, "two moments, and each is 4 bytes: 8 bytes a parameter"),
            ],
        )
