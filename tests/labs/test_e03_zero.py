"""The checks of lab e03: ZeRO, graded by what a rank holds, what it sends, and in which order."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import nn

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.words import plural

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
    "test": {"layers": 2, "batch": 1, "length": 16, "deep": 8, "steps": 1, "repeats": 1},
    "gpu": {"preset": "30M", "layers": 8, "batch": 8, "length": 512},
    "multi": {"preset": "100M", "layers": 12, "batch": 16, "length": 1024},
}
REVEALS = {
    "bytes_a_parameter": Reveal(
        "measured", "8 + 8/N, all in float32", formula=lambda ranks: 8 + 8 / ranks
    ),
    "runs_that_fit": Reveal(
        "measured",
        "bytes a parameter of the states alone: 16, 16, 16/4, 8/4 and 14/4; 16/4 is the whole budget",
        formula=lambda budget: sum(each < budget for each in (16, 16, 16 / 4, 8 / 4, 14 / 4)),
    ),
}
HIDDEN = (
    "minitrain/parallel/zero/plain.py",
    "minitrain/parallel/zero/unit.py",
    "minitrain/parallel/zero/sharded.py",
    "minitrain/parallel/zero/stage_3.py",
    "minitrain/parallel/zero/optimizer.py",
    "minitrain/parallel/zero/guards.py",
    "minitrain/parallel/zero/state.py",
    "minitrain/memory/optimizer_offload.py",
)
STEPS = 3
IDLE = 0  # the rank on which some parameters have no gradient
CASES = (probes.LARGE, probes.SMALL)
NUMBER_BYTES = {torch.float64: 8, torch.float32: 4}
MOMENTS = {probes.ADAMW: 2, probes.SGD: 1}  # numbers of state for each of a shard
NO_GRADIENT = {
    ("NoneType", "deadlock", "mismatch"): f"(on rank {IDLE} some parameters were not used and have no gradient, nor has "
    "any of the second unit: unit.whole_gradient() has zeros in their place, and the rank takes part all the same)",
}  # fmt: skip


def batches_of(cases, ranks, steps=STEPS):
    """Of each case, each step, each rank."""
    return [
        [[torch.randn(3, c.widths[0], dtype=c.dtype) for _ in range(ranks)] for _ in range(steps)]
        for c in cases
    ]


def described(case, rank, ranks):
    units = len(case.widths) - 1
    kind = str(case.dtype).removeprefix("torch.")
    return f"rank {rank} of {ranks}, a model of {plural(units, 'unit')} in {kind}"


def zero1_losses(model, rows, rank):
    return [probes.squared_where_used(model, rows, rank == IDLE)]


def zero3_losses(model, rows, rank):
    return [probes.squared(model, part) for part in probes.microbatches(rows)]


def one_process(case, batches, losses, scale=1.0, keep=False):
    """Parameters after the steps on all ranks' batches; the arguments make likely mistakes."""
    model = probes.network(case)
    optimizer = case.make(model.parameters())
    for step in batches:
        for rank, rows in enumerate(step):
            (scale * sum(losses(model, rows, rank)) / len(step)).backward()
        optimizer.step()
        if not keep:
            optimizer.zero_grad()
    return probes.values(model)


def equal_parameters(results, case, batches, losses):
    """results[rank]: of one case."""
    ranks = len(results)
    made = lambda **how: one_process(case, batches, losses, **how)  # noqa: E731
    hints = [
        (made(scale=ranks), "that is the step of the *sum* over ranks: average (op='avg')"),
        (made(keep=True), "gradients add up over the steps here: forget them after each"),
        (made(scale=1 / ranks), "the average was divided by the number of ranks twice"),
        (probes.values(probes.network(case)), "those are the initial parameters"),
    ]
    for rank, result in enumerate(results):
        what = f"{described(case, rank, ranks)}: the parameters after {STEPS} steps"
        expect.equal(result["parameters"], made(), what=what, hints=hints)


def shares(case, ranks):
    """Elements of each unit's shard, and of the whole units with their padding."""
    own = [-(-(m * n + n) // ranks) for m, n in pairwise(case.widths)]
    return own, sum(own) * ranks


def all_waited_for(submission):
    """In the last launch."""
    words = submission.never_waited()
    expect.that(words is None, f"{words}; until then what it brings may not be there")


def ring_bytes(case, ranks):
    """(N-1)/N of the whole units: what a reduce-scatter or an all-gather of all of them sends."""
    _, whole = shares(case, ranks)
    return (ranks - 1) * NUMBER_BYTES[case.dtype] * whole // ranks


class TestZero1(Exercise):
    """Stage 1: the optimizer state is sharded"""

    name = "Zero1"
    reference = "minitrain.parallel.zero.plain:Zero1"
    hidden = HIDDEN

    @check(
        points=4,
        title="three steps equal one process, no gradient is left (2 and 3 ranks, float64 and float32)",
    )
    def test_parameters(self, submission):
        for ranks in (2, 3):
            batches = batches_of(CASES, ranks)
            with expect.because(NO_GRADIENT):
                results = submission.launch(probes.zero1_steps, CASES, batches, IDLE, ranks=ranks)
            all_waited_for(submission)
            for case, steps, *own in zip(CASES, batches, *results):
                for result in own:
                    expect.that(
                        not result["moved"],
                        "after step() a parameter or a shard is no view of `full` any more: give new memory to none of "
                        "them, and all_gather into the `full` that is there",
                    )
                    left = " and a ".join(result["left"])
                    expect.that(
                        not left,
                        f"after step() a {left} still has a gradient: set `.grad = None` on each",
                    )
                equal_parameters(own, case, steps, zero1_losses)

    @check(points=8, title="1/N of the optimizer state, 2(N-1)/N of the parameters sent")
    def test_sharded(self, submission):
        for ranks in (2, 3):
            batches = batches_of(CASES, ranks)
            results = submission.launch(probes.zero1_steps, CASES, batches, ranks=ranks)
            for rank, (result, trace) in enumerate(zip(results, results.traces)):
                for case, own in zip(CASES, result):
                    self.state_is_sharded(own["state"], case, rank, ranks)
                self.sends_two_halves(trace, rank, ranks)

    def state_is_sharded(self, state, case, rank, ranks):
        own, _ = shares(case, ranks)
        least = MOMENTS[case.make] * NUMBER_BYTES[case.dtype] * sum(own)
        counters = 8 * 2 * len(case.widths)
        expect.that(
            least <= state <= least + counters,
            f"{described(case, rank, ranks)}: {state} bytes of optimizer state, and its shards' is {least}: give `make` all "
            "of the shards, and nothing else, once",
        )

    def sends_two_halves(self, trace, rank, ranks):
        want = 2 * STEPS * sum(ring_bytes(case, ranks) for case in CASES)
        kinds = {op.kind for op in trace.ops}
        expect.that(
            trace.bytes_sent() == want and kinds == {"reduce_scatter", "all_gather"},
            f"rank {rank} of {ranks} sent {trace.bytes_sent()} bytes in {STEPS} steps of two models by "
            f"{', '.join(sorted(kinds)) or 'no message'}; 2(N-1)/N of the gradients and parameters is {want}: one "
            "reduce_scatter and one all_gather a unit",
        )


class TestReduceUnit(Exercise):
    """Stage 2: of the gradients, the own part is kept"""

    name = "reduce_unit"
    reference = "minitrain.parallel.zero.plain:reduce_unit"
    hidden = HIDDEN
    microbatches = 4  # three that add up, then all is forgotten, then one more

    @check(points=3, title="shard.grad is this rank's part of the average; microbatches add up")
    def test_gradient(self, submission):
        for ranks in (2, 3):
            batches = batches_of(CASES, ranks, self.microbatches)
            with expect.because(NO_GRADIENT):
                results = submission.launch(probes.reduced, CASES, batches, IDLE, ranks=ranks)
            for case, steps, *own in zip(CASES, batches, *results):
                for rank, result in enumerate(own):
                    where = described(case, rank, ranks)
                    expect.identical(
                        result["parameters"],
                        probes.values(probes.network(case)),
                        what=f"{where}: the parameters, which only the update moves",
                    )
                    for number, units in enumerate(result["seen"], 1):
                        since = steps[3:4] if number == self.microbatches else steps[:number]
                        self.equal_parts(units, case, since, rank, where)

    def equal_parts(self, units, case, batches, rank, where):
        """batches: the microbatches since the shards' gradients were None."""
        ranks = len(batches[0])
        count, every = len(batches), range(ranks)
        part = lambda *given: self.flat(case, *given)[rank]  # noqa: E731
        want = part(batches, every, ranks) / ranks
        hints = [(want * ranks, "that is the sum over ranks: op='avg'"),
                 (part(batches, [rank], ranks), "that is the rank's own gradient: it was never reduced")]  # fmt: skip
        if count > 1:
            hints += [
                (part(batches[-1:], every, ranks) / ranks, "that is the last microbatch's alone: add to what is there"),
                (want / count, "that is the mean of the microbatches: they add up"),
            ]  # fmt: skip
        first = 0
        for number, unit in enumerate(units):
            length = shares(case, ranks)[0][number]
            own = slice(first, first := first + length)
            expect.equal(
                unit["gradient"],
                want[own],
                what=f"{where}, unit {number}: shard.grad (microbatches since it was None: {count})",
                hints=[(wrong[own], words) for wrong, words in hints],
            )

    @staticmethod
    def flat(case, batches, taken, ranks):
        """[rank]: its shards of the gradients, summed over these ranks and microbatches."""
        model, parts = probes.network(case), []
        for step in batches:
            for rank in taken:
                probes.squared_where_used(model, step[rank], rank == IDLE).backward()
        for layer, length in zip(model.layers, shares(case, ranks)[0]):
            flat = torch.zeros(length * ranks, dtype=case.dtype)
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in layer.parameters()]
            whole = torch.cat([gradient.flatten() for gradient in grads])
            flat[: len(whole)] = whole
            parts.append(flat.view(ranks, length))
        return torch.cat(parts, dim=1)

    @check(points=7, title="one reduce-scatter a unit; S/N elements stay, in memory of their own")
    def test_held(self, submission):
        for ranks in (2, 3):
            batches = batches_of(CASES, ranks, self.microbatches)
            results = submission.launch(probes.reduced, CASES, batches, ranks=ranks)
            all_waited_for(submission)
            for rank, (result, trace) in enumerate(zip(results, results.traces)):
                for case, own in zip(CASES, result):
                    for number, units in enumerate(own["seen"], 1):
                        where = f"{described(case, rank, ranks)}, after microbatch {number}"
                        self.holds_a_part(units, case, ranks, where)
                self.sends_one_half(trace, rank, ranks)

    def holds_a_part(self, units, case, ranks, where):
        for number, (unit, elements) in enumerate(zip(units, shares(case, ranks)[0])):
            expect.that(
                unit["left"] == 0,
                f"{where}, unit {number}: its parameters still have their whole gradient: "
                "set `parameter.grad = None` on each, or stage 2 saves nothing",
            )
            least = NUMBER_BYTES[case.dtype] * elements
            expect.that(
                unit["held"] == least,
                f"{where}, unit {number}: shard.grad keeps {unit['held']} bytes alive for {least}: reduce_scatter into a "
                "tensor of its own (a slice keeps the whole tensor behind it)",
            )
            expect.that(
                unit["beside"] < least * ranks,
                f"{where}: {unit['beside']} bytes that the calls have made are in memory beside every shard.grad: keep "
                f"neither a whole gradient ({least * ranks} bytes) nor a buffer for the next call",
            )

    def sends_one_half(self, trace, rank, ranks):
        units = sum(len(case.widths) - 1 for case in CASES) * self.microbatches
        kinds = {op.kind for op in trace.ops}
        want = self.microbatches * sum(ring_bytes(case, ranks) for case in CASES)
        expect.that(
            kinds == {"reduce_scatter"} and trace.count() == units and trace.bytes_sent() == want,
            f"rank {rank} sent {plural(trace.count(), 'message')} ({', '.join(sorted(kinds)) or 'none'}) of "
            f"{trace.bytes_sent()} bytes in {units} calls: one reduce_scatter each, together {want} bytes, (N-1)/N of the "
            "gradients in their own dtype",
        )


class TestShardedUnit(Exercise):
    """Stage 3: parameters that come and go"""

    name = "ShardedUnit"
    reference = "minitrain.parallel.zero.plain:ShardedUnit"
    hidden = HIDDEN

    def turns(self, submission):
        """(where, the unit's layer, what was found) of two units on each rank."""
        layers = probes.network(probes.LARGE).layers[1], probes.network(probes.SMALL).layers[0]
        for ranks in (2, 3):
            for rank, units in enumerate(submission.launch(probes.gathered, ranks=ranks)):
                for layer, found, nth in zip(layers, units, ("first", "second")):
                    where = f"rank {rank} of {ranks}, the {nth} of two units that are alive at once"
                    yield where, layer, found, ranks

    @check(points=3, title="gather gives the parameters, and after an update the new ones")
    def test_values(self, submission):
        for where, layer, found, _ in self.turns(submission):
            want = probes.values(layer)
            tripled = [3 * w for w in want]
            expect.equal(found["values"], want, what=f"{where}: the parameters after gather()")
            old = "those are the old ones: after free() the next gather must send `self.shard` anew"
            what = f"{where}: the shards were tripled between free() and gather(); the parameters"
            expect.equal(found["tripled"], tripled, what=what, hints=[(want, old)])
            old = "that is from the old values: gather() must fill the memory that the graph holds, no new `full`"
            what = f"{where}: the gradient of a forward's input, from the parameters that its graph holds"
            gradient, wrong = (w[0].sum(0, keepdim=True) for w in (tripled, want))
            expect.equal(found["gradient"], gradient, what=what, hints=[(wrong, old)])

    @check(points=4, title="freed, it holds the shard alone; the parameters stay views of `full`")
    def test_bytes(self, submission):
        for where, layer, found, ranks in self.turns(submission):
            elements = -(-sum(p.numel() for p in layer.parameters()) // ranks)
            least = NUMBER_BYTES[layer.weight.dtype] * elements
            expect.that(
                found["shard"] == least,
                f"{where}: the shard keeps {found['shard']} bytes alive, not {least}: it needs a tensor of its own",
            )
            for when in ("at first", "freed", "freed again"):
                full, beside = found[when]
                expect.that(
                    full == 0,
                    f"{where}, {when}: the storage of `full` has {full} bytes. Shrink it, full.untyped_storage().resize_(0): "
                    "the graph of a forward holds the tensor, whatever its name",
                )
                expect.that(
                    beside < least * ranks,
                    f"{where}, {when}: {beside} bytes are in memory beside the shard: keep no copy of the parameters",
                )
            full, whole = found["gathered"][0], least * ranks
            expect.that(
                full == whole,
                f"{where}: gathered, the storage of the first `full` has {full} bytes, and needs {whole}: give that storage "
                "its bytes again, resize_(self.full.nbytes)",
            )
            expect.that(
                not found["moved"], f"{where}: the parameters are no views of `full` any more"
            )

    @check(points=5, title="start_gather does not wait, gather does, and nothing is sent twice")
    def test_start(self, submission):
        for rank, freed in enumerate(submission.launch(probes.started, ranks=2)):
            expect.that(
                freed == 0,
                f"rank {rank}: after start_gather() and gather(), each more than once, one free() leaves {freed} bytes",
            )
            (run,) = relayed.runs(submission.notes[rank], "turns", 1)
            waits = {mark: relayed.waits(before) for mark, before in relayed.before_marks(run)}
            expect.that(waits["begun"], f"rank {rank}: start_gather() sent nothing")
            expect.that(
                not any(waits["started"]),
                f"rank {rank}: start_gather() waited for its message: issue it with async_op=True and keep the work; "
                "gather() and free() wait",
            )
            expect.that(
                waits["gathered"] and all(waits["gathered"]),
                f"rank {rank}: after gather() a message is still under way: it must wait, whoever has begun",
            )
            count, after = len(waits["used"]), len(relayed.waits(run))
            expect.that(
                count == 1,
                f"rank {rank}: three start_gather() and two gather() without a free() sent {count} messages, "
                "expected 1: until free() `self.work` stays, and where a work is there nothing is sent",
            )
            expect.that(after == 1, f"rank {rank}: free() sent something, and it sends nothing")

    @check(points=2, title="free waits for what is still arriving")
    def test_unused(self, submission):
        words = "start_gather(), then free(): free() must wait for the work before it shrinks the memory"
        with expect.because({"died": words}):
            results = submission.launch(probes.unused, ranks=2)
        want = probes.values(probes.network().layers[1])
        for rank, result in enumerate(results):
            (run,) = relayed.runs(submission.notes[rank], "turns", 1, ["at last"])
            waits = relayed.waits(run)
            expect.that(waits and all(waits), f"rank {rank}: {words}")
            full = result["freed"]
            expect.that(full == 0, f"rank {rank}: start_gather(), free(): `full` has {full} bytes")
            what = f"rank {rank}: the parameters after start_gather(), free(), gather()"
            expect.equal(result["values"], want, what=what)


class TestZero3(Exercise):
    """Stage 3: the next unit travels while this one computes"""

    name = "Zero3"
    reference = "minitrain.parallel.zero.plain:Zero3"
    hidden = HIDDEN
    cases = (probes.LARGE, probes.ONE_UNIT, probes.FIVE_UNITS)

    def results(self, submission, ranks):
        """batches[case], and results[rank][case]."""
        batches = batches_of(self.cases, ranks)
        results = submission.launch(probes.zero3_steps, self.cases, batches, ranks=ranks, timeout=8)
        for result, notes in zip(results, submission.notes):
            for number, own in enumerate(result):
                beside = [*(("pass", other) for other in range(len(result))), "at last"]
                runs = relayed.runs(notes, ("pass", number), len(own["passes"]), beside)
                for each, run in zip(own["passes"], runs):
                    ops = relayed.operations(run)
                    each["ops"] = [(op.kind, op.sent_bytes) for op in ops]
                    each["log"] = relayed.labels(run)
        return batches, results

    def passes(self, results, ranks):
        """(where, case, pass) of each."""
        for rank, result in enumerate(results):
            for case, own in zip(self.cases, result):
                for turn, each in enumerate(own["passes"], 1):
                    kind = "training" if each["training"] else "evaluation"
                    yield f"{described(case, rank, ranks)}, pass {turn} ({kind})", case, each

    @check(
        points=4,
        title="three steps equal one process, nothing stays full (2 and 3 ranks, 1, 3 and 5 units)",
    )
    def test_parameters(self, submission):
        for ranks in (2, 3):
            batches, results = self.results(submission, ranks)
            for where, _, each in self.passes(results, ranks):
                expect.that(
                    each["left"] == 0,
                    f"{where}: after it parameters still have their whole gradient: reduce_unit(unit) when they are complete",
                )
                self.are_all_freed(where, each, "after backward")
            for case, steps, *own in zip(self.cases, batches, *results):
                equal_parameters(own, case, steps, zero3_losses)

    @check(points=8, title="one unit ahead, both ways, and two at a time at most")
    def test_prefetch(self, submission):
        self.keep_the_order(self.results(submission, 2)[1], 2)

    def keep_the_order(self, results, ranks):
        for where, case, each in self.passes(results, ranks):
            self.are_all_freed(where, each, "after forward")
            self.is_one_ahead(where, each, len(case.widths) - 1)
            self.are_two_at_most(where, each)
            self.are_all_freed(where, each, "after backward")

    def are_all_freed(self, where, each, when):
        expect.that(
            each[when] == 0,
            f"{where}: {when} {plural(each[when], 'unit')} still full: free() each when it has computed, and "
            "start_gather() nothing behind the last (in backward: before the first, units[-1] is not nothing)",
        )

    def is_one_ahead(self, where, each, units):
        lines = [tuple(line[:2]) for line in each["log"]]
        order = [("forward", k, k + 1) for k in range(units)]
        if each["training"]:
            order += [("backward", k, k - 1) for k in reversed(range(units))]
        for what, number, following in order:
            now = lines.index((what, number))
            expect.that(
                ("gather", number) in since_free(lines, number, now),
                f"{where}: the {what} of unit {number} began and nobody had waited for its parameters: gather() the unit "
                "that computes now",
            )
            if 0 <= following < units:
                before = since_free(lines, following, now)
                expect.that(
                    ("start", following) in before,
                    f"{where}: when the {what} of unit {number} began, the gather of unit {following} was not "
                    f"under way: start_gather() of the next in {what} order belongs into before_{what}",
                )
                expect.that(
                    ("gather", following) not in before,
                    f"{where}: before the {what} of unit {number} it waited for unit {following}: start_gather() the next "
                    "one, gather() only the one that computes now",
                )

    def are_two_at_most(self, where, each):
        for what, number, *held in each["log"]:
            full, large = held or (0, 0)
            expect.that(
                full <= 2,
                f"{where}: at the {what} of unit {number} {full} units were full: this one and the next are two",
            )
            expect.that(
                large < 2 * probes.WHOLE_WEIGHT,
                f"{where}: at the {what} of unit {number} {large} bytes of whole units were in memory beside `full`: "
                "keep no copy of what gather() brought, and no gradient that was not reduced",
            )
        expect.that(
            each["beside"] < probes.WHOLE_WEIGHT,
            f"{where}: after it {each['beside']} bytes are in memory beside the shards' gradients: keep no copy",
        )

    @check(points=2, title="forward and backward send 3(N-1)/N of the parameters, and no more")
    def test_sent(self, submission):
        _, results = self.results(submission, 3)
        self.keep_the_order(results, 3)
        for where, case, each in self.passes(results, 3):
            units, times = len(case.widths) - 1, 3 if each["training"] else 1
            kinds = [kind for kind, _ in each["ops"]]
            count = kinds.count("all_gather"), kinds.count("reduce_scatter")
            sent = sum(size for _, size in each["ops"])
            want = times * ring_bytes(case, 3)
            expect.that(
                sent == want and count == ((2 * units, units) if each["training"] else (units, 0)),
                f"{where}: {count[0]} all-gathers and {count[1]} reduce-scatters of {plural(units, 'unit')}, {sent} bytes; "
                f"{times}(N-1)/N is {want}: gather each unit once in forward and once in backward, reduce it once",
            )


def since_free(lines, unit, now):
    """What was called before line `now`, from when this unit was last freed."""
    begin = max((i for i in range(now) if lines[i] == ("free", unit)), default=0)
    return lines[begin:now]


class TestOffloadedStep(Exercise):
    """Optimizer state in a store"""

    name = "offloaded_step"
    reference = "minitrain.parallel.zero.plain:offloaded_step"
    hidden = HIDDEN
    makes = (partial(torch.optim.AdamW, lr=1e-2), probes.SGD)
    sizes = ((5, 9, 4), (6, 6))

    def results(self, submission):
        """(optimizer's name, shards, gradients[step], what was found) of two runs that take turns;
        one unit of the second run has no gradient at first."""
        shards = [[torch.randn(n, dtype=torch.float64) for n in own] for own in self.sizes]
        gradients = [[[torch.randn_like(s) for s in own] for _ in range(STEPS)] for own in shards]
        gradients[1][0][1] = None
        unread = "a state that has got its memory back holds nothing yet: read it before the step"
        with expect.because({"OverflowError": unread}):
            found = submission.run(probes.offload_steps, self.makes, shards, gradients)
        return list(zip(self.makes, shards, gradients, found))

    def stepped(self, make, shards, gradients, forgets=False):
        """The shards after steps without a store; the argument makes a likely mistake."""
        shards = [nn.Parameter(shard.clone()) for shard in shards]
        optimizers = [make([shard]) for shard in shards]
        for step in gradients:
            if forgets:
                optimizers = [make([shard]) for shard in shards]
            for shard, gradient, optimizer in zip(shards, step, optimizers):
                shard.grad = gradient
                optimizer.step()
        return [shard.detach() for shard in shards]

    @check(points=3, title="three steps move the shards as they would without a store")
    def test_shards(self, submission):
        for make, *given, found in self.results(submission):
            name = (
                f"{make.func.__name__} (of two runs that take turns, each with a store of its own)"
            )
            problems = "; ".join(dict.fromkeys(found["problems"]))
            expect.that(
                not problems,
                f"{name}: the store says: {problems}. Read only a state that is there, give its tensors memory before the "
                "read, write them after the step, free them after the write",
            )
            new = "that is the optimizer whose state is new at every step: read it back"
            hints = [(self.stepped(make, *given, forgets=True), new)]
            what = f"{name}: the shards after three steps"
            expect.equal(found["shards"], self.stepped(make, *given), what=what, hints=hints)

    @check(points=4, title="in memory: one unit's state at a time, and none after the step")
    def test_memory(self, submission):
        self.hold_one(self.results(submission))

    def hold_one(self, results):
        for *_, found in results:
            for number, step in enumerate(found["steps"], 1):
                expect.that(
                    step["left"] == 0 and any(what == "write" for what, _ in step["calls"]),
                    f"after step {number} {step['left']} bytes of state are in memory, wherever they were written: write "
                    "every tensor that `state_tensors` has after the step, then tensor.untyped_storage().resize_(0)",
                )
                for place, others in enumerate(step["beside"]):
                    expect.that(
                        others == 0,
                        f"step {number}: while `optimizers[{place}]` stepped, {others} bytes of others' state were in "
                        "memory: read, step, write and free unit by unit",
                    )

    @check(points=3, title="a step reads and writes each unit once, and commits at its end")
    def test_store(self, submission):
        results = self.results(submission)
        self.hold_one(results)
        for _, _, gradients, found in results:
            had = 0  # units with a state
            for number, step in enumerate(found["steps"], 1):
                seen = gradients[:number]
                has = sum(any(g is not None for g in unit) for unit in zip(*seen))
                self.once_each(number, step["calls"], had, has)
                had = has

    def once_each(self, number, calls, had, has):
        for verb, count in (("write", has), ("read", had)):
            keys = [key for what, key in calls if what == verb]
            expect.that(
                len(keys) == len(set(keys)) == count,
                f"step {number}, {verb}: {keys}, expected {plural(count, 'unit')}, once each under a key of its own: "
                "what has made no state yet has nothing in the store",
            )
        expect.that(
            calls[-1][0] == "commit" and [c[0] for c in calls].count("commit") == 1,
            f"step {number}: store.commit() belongs once, at the end, when all is written: until then "
            "the state of the step before is the valid one",
        )


def formula(stage, size, ranks):
    """Bytes that a rank holds, all float32: parameters, gradients, optimizer."""
    parts = [4 * size, 4 * size, 8 * size]
    shards = {0: (), 1: (2,), 2: (1, 2), 3: (0, 1, 2)}[stage]
    return [part / ranks if i in shards else part for i, part in enumerate(parts)]


class TestHeld(Experiment):
    """Bytes a rank holds, stage by stage"""

    name = "held"
    rests_on = ("Zero1", "reduce_unit", "Zero3")

    @check(points=6, title="each stage holds what its formula says, and one unit more at most")
    def test_bytes(self, table):
        for stage in range(4):
            row = expect.rows(table, "stage")[stage]
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
            row = expect.rows(table, "stage")[stage]
            totals.append(row["parameter_bytes"] + row["gradient_bytes"] + row["optimizer_bytes"])
        expect.that(totals == sorted(totals, reverse=True), f"bytes of stages 0 to 3: {totals}")


class TestFits(Experiment):
    """Four times one rank's budget"""

    name = "fits"
    rests_on = ("Zero3",)

    @check(points=5, title="it fails on one rank, and a run on four gets through within its budget")
    def test_fits(self, table):
        row = expect.rows(table, "run")["1 rank"]
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

    @check(
        points=4, title="DDP fails on four ranks too; a run that fits has one process's loss, to 1%"
    )
    def test_loss(self, table):
        row = expect.rows(table, "run")["4 ranks, DDP"]
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
    rests_on = ("Zero1", "reduce_unit", "ShardedUnit", "Zero3", "offloaded_step")

    @check(points=4, title="DDP and stages 1 and 2 send 2(N-1)/N of P, stage 3 what section 4 says")
    def test_sent(self, table):
        for variant, factor in [("DDP", 2), ("stage 1", 2), ("stage 2", 2), ("stage 3", 3)]:
            row = expect.rows(table, "variant")[variant]
            want = factor * (row["ranks"] - 1) / row["ranks"] * 4 * row["parameters"]
            expect.close(
                row["sent_bytes"], want, tol=0.01, what=f"{variant}: bytes a rank sends a step"
            )

    @check(points=3, title="every variant was timed, FSDP2 too")
    def test_time(self, table):
        for variant in ("DDP", "stage 1", "stage 2", "stage 3", "FSDP2"):
            row = expect.rows(table, "variant")[variant]
            expect.that(row["step_seconds"] > 0, f"{variant}: {row['step_seconds']} s is no time")


class TestLargest(Question):
    """The largest model on eight GPUs"""

    name = "largest"
    rests_on = ("held",)

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
    rests_on = ("steps",)

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
    rests_on = ("offloaded_step",)

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
