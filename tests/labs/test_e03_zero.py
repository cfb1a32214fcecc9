"""The checks of lab e03: ZeRO, graded by what a rank holds, what it sends, and in which order."""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product

import torch
from torch import nn
from torch.nn import functional as F

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import cause_of
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
NTH = ("the first", "the second")
IDLE = 0  # the rank on which some parameters have no gradient


# From here on, the grader's own process.
CASES = (probes.LARGE, probes.SMALL)
NUMBER_BYTES = {torch.float64: 8, torch.float32: 4}
MOMENTS = {probes.ADAMW: 2, probes.SGD: 1}  # numbers of state for each of a shard
NO_GRADIENT = {
    "NoneType": f"(on rank {IDLE} some parameters were not used and have no gradient, `.grad` is None: "
    "unit.whole_gradient() has zeros in their place; a shard's `.grad` is None, too, until it is given a tensor)",
    **dict.fromkeys(
        ("deadlock", "mismatch"),
        f"(here no parameter of rank {IDLE}'s second unit has a gradient: that rank takes part "
        "all the same, with unit.whole_gradient(), which has zeros for them)",
    ),
}
STILL_VIEWS = (
    "the parameters are no views of `full` any more; do not make new tensors, "
    "fill the memory that is there"
)


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


def same_on_all(results, ranks):
    for rank, result in enumerate(results):
        for mine, first in zip(result["parameters"], results[0]["parameters"]):
            expect.that(
                torch.equal(mine, first),
                f"after {STEPS} steps rank {rank} of {ranks} has other parameters than rank 0, and all must have the "
                "same: average the gradients before the update, all_gather the shards into `full` after it",
            )


def flat_gradients(model, case, losses, rows, rank, ranks):
    """Of one rank alone, unit by unit, padded to equal shards."""
    model.zero_grad()
    sum(losses(model, rows, rank)).backward()
    own, _ = shares(case, ranks)
    out = []
    for layer, length in zip(model.layers, own):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in layer.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in grads])
        out.append(F.pad(flat, (0, length * ranks - flat.numel())))
    return out


def own_parts(of_rank):
    """Each shard's gradient from its own rank's rows alone."""
    ranks = len(of_rank)
    return [
        torch.cat([flat.chunk(ranks)[rank] for rank, flat in enumerate(flats)])
        for flats in zip(*of_rank)
    ]


def averages(of_rank):
    return [sum(flats) / len(of_rank) for flats in zip(*of_rank)]


def last_of_each_size(of_rank):
    """Units of one size with one place for their gradients: the last of them is in it."""
    last = {len(flat): flat for flat in averages(of_rank)}
    return [last[len(flat)] for flat in averages(of_rank)]


def sharded_steps(case, batches, losses, mix=averages, anew=False, each_unit=False):
    """Parameters after steps in which the units' gradients are made and used in some wrong way."""
    model = probes.network(case)
    optimizer = case.make(model.parameters())
    for step in batches:
        of_rank = [
            flat_gradients(model, case, losses, rows, rank, len(step))
            for rank, rows in enumerate(step)
        ]
        model.zero_grad()
        if anew:
            optimizer = case.make(model.parameters())
        for layer, flat in zip(model.layers, mix(of_rank)):
            begin = 0
            for parameter in layer.parameters():
                end = begin + parameter.numel()
                parameter.grad = flat[begin:end].view_as(parameter).clone()
                begin = end
            if each_unit:
                optimizer.step()
        if not each_unit:
            optimizer.step()
    return probes.values(model)


SHARDED_MISTAKES = {
    "that is what each shard does with its own rank's gradient: they were never reduced": {
        "mix": own_parts
    },
    "that is what an optimizer does that is made anew for every step: its moments are lost": {
        "anew": True
    },
    "that is the step of units of equal size with one gradient, that of the last of them: each shard "
    "needs a gradient in memory of its own": {"mix": last_of_each_size},
    "that is what comes of `optimizer.step()` once for every unit: it moves all shards that have a "
    "gradient by then": {"each_unit": True},
}


def equal_parameters(results, case, batches, losses, sharded=False):
    """results[rank]: of one case; sharded: mistakes of one optimizer over all shards, too."""
    ranks = len(results)
    mistakes = {
        "that is the step of the *sum* over ranks: average (op='avg')": {"scale": ranks},
        "that is what gradients give that add up over the steps: forget them after each": {
            "keep": True
        },
        "that is the step of an average that was divided by the number of ranks twice": {
            "scale": 1 / ranks
        },
    }
    variants = [
        (one_process(case, batches, losses, **how), words) for words, how in mistakes.items()
    ]
    initial = probes.values(probes.network(case))
    variants.append((initial, "those are the initial parameters: nothing has moved them"))
    variants += [
        (sharded_steps(case, batches, losses, **how), words)
        for words, how in SHARDED_MISTAKES.items()
        if sharded
    ]
    want = one_process(case, batches, losses)
    for rank, result in enumerate(results):
        expect.equal(
            result["parameters"],
            want,
            what=f"{described(case, rank, ranks)}: the parameters after {STEPS} steps",
            hints=[*variants, *unmoved(result["parameters"], initial, sharded)],
        )


def unmoved(got, initial, sharded):
    """A hint that names the units whose weight and bias stand where they began."""
    pairs = list(zip(got, initial))
    units = [pairs[first : first + 2] for first in range(0, len(pairs), 2)]
    still = [
        number for number, unit in enumerate(units) if all(torch.equal(*pair) for pair in unit)
    ]
    if not still:
        return []
    names = ", ".join(map(str, still))
    words = f"{'unit' if len(still) == 1 else 'units'} {names} (counted from 0) never moved"
    moves = (
        "the optimizer has every unit's shard"
        if sharded
        else "reduce_unit() gives every unit's shard its gradient"
    )
    return [(got, f"{words}: {moves}")]


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
            for case, steps, *own in zip(CASES, batches, *results):
                try:
                    for result in own:
                        self.are_views(result)
                    same_on_all(own, ranks)
                    for result in own:
                        self.no_gradient_left(result)
                    equal_parameters(own, case, steps, zero1_losses, sharded=True)
                except CheckFailed as failure:
                    all_waited_for(submission)  # where one was not, that is the cause to be told
                    raise self.with_state(failure, own, case) from None

    @check(points=8, title="1/N of the optimizer state, 2(N-1)/N of the parameters sent")
    def test_sharded(self, submission):
        for ranks in (2, 3):
            batches = batches_of(CASES, ranks)
            results = submission.launch(probes.zero1_steps, CASES, batches, ranks=ranks)
            for rank, (result, trace) in enumerate(zip(results, results.traces)):
                for case, own in zip(CASES, result):
                    self.state_is_sharded(own["state"], case, rank, ranks)
                self.sends_two_halves(trace, rank, ranks)
            all_waited_for(submission)

    def with_state(self, failure, own, case):
        """Where it names no cause, also what an optimizer has that was given more than the shards."""
        rank = max(range(len(own)), key=lambda rank: own[rank]["state"])
        try:
            self.state_is_sharded(own[rank]["state"], case, rank, len(own))
        except CheckFailed as found:
            if cause_of(str(failure)) is None:
                return CheckFailed(f"{failure}\n{found}", f"{failure.secretive}\n{found.secretive}")
        return failure

    def no_gradient_left(self, result):
        expect.that(
            "parameter" not in result["left"],
            "after step() parameters still have a gradient: the next backward would add to it. Set "
            "`.grad = None` on each",
        )
        expect.that(
            "shard" not in result["left"],
            "after step() a shard still has its gradient: it takes memory during the next forward "
            "and backward. Set `unit.shard.grad = None`, too",
        )

    def are_views(self, result):
        words = STILL_VIEWS.replace("the parameters are", "a parameter is").replace("views", "view")
        expect.that(
            "parameters" not in result["moved"],
            f"after step() {words}: all_gather into `unit.full`",
        )
        expect.that(
            "shard" not in result["moved"],
            "after step() a shard is no view of `full` any more: give new memory to neither of them. The "
            "optimizer moves the shard, a part of `full`, and all_gather fills that same `full`",
        )

    def state_is_sharded(self, state, case, rank, ranks):
        own, _ = shares(case, ranks)
        least = MOMENTS[case.make] * NUMBER_BYTES[case.dtype] * sum(own)
        counters = 8 * 2 * len(case.widths)
        where = f"{described(case, rank, ranks)}: {state} bytes of optimizer state"
        whole = MOMENTS[case.make] * NUMBER_BYTES[case.dtype]
        whole *= sum(m * n + n for m, n in pairwise(case.widths))
        if ranks != STEPS and STEPS * least <= state <= STEPS * (least + counters):
            words = f"as much as {STEPS} optimizers of the shards have, one for each step: make one, in __init__"
        elif state >= whole:
            words = "it is not sharded. Give `make` the shards, and nothing else"
        else:
            words = "give `make` the shards, and nothing else"
        expect.that(state <= least + counters, f"{where}, and its shards' is {least}: {words}")
        expect.that(
            state >= least,
            f"{where}; its shards' is {least}: is a unit left out, or has the optimizer got "
            "something else than the shards?",
        )

    def sends_two_halves(self, trace, rank, ranks):
        want = 2 * STEPS * sum(ring_bytes(case, ranks) for case in CASES)
        kinds = {op.kind for op in trace.ops}
        expect.that(
            kinds != {"all_gather"} or 2 * trace.bytes_sent() > want,
            f"rank {rank} sent all_gather only: the gradients were never reduced",
        )
        words = (
            "an all-reduce leaves every rank the whole sum, of which it needs 1/N: reduce_scatter"
            if "all_reduce" in kinds
            else "a reduce_scatter and an all_gather a unit"
        )
        turns = STEPS * sum(len(case.widths) - 1 for case in CASES)
        for kind in ("reduce_scatter", "all_gather"):
            count = trace.count(kind)
            if count > turns:
                words += f". These were {count} {kind} for {turns} updates of a unit"
        expect.that(
            trace.bytes_sent() == want and "all_reduce" not in kinds,
            f"rank {rank} of {ranks} sent {trace.bytes_sent()} bytes in {STEPS} steps of two models by "
            f"{', '.join(sorted(kinds)) or 'no message'}; 2(N-1)/N of the gradients and parameters is {want}: "
            f"{words}",
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
                    untouched = probes.values(probes.network(case))
                    expect.that(
                        expect.difference(result["parameters"], untouched, 0.0) is None,
                        f"{where}: the parameters themselves have changed, which only the update moves: "
                        "reduce_scatter into a tensor of its own",
                    )
                    for number, units in enumerate(result["seen"], 1):
                        since = steps[3:4] if number == self.microbatches else steps[:number]
                        forgotten = steps[:3] if number == self.microbatches else []
                        self.equal_parts(units, case, since, rank, where, forgotten)

    @check(points=7, title="one reduce-scatter a unit; S/N elements stay, in memory of their own")
    def test_held(self, submission):
        for ranks in (2, 3):
            batches = batches_of(CASES, ranks, self.microbatches)
            results = submission.launch(probes.reduced, CASES, batches, ranks=ranks)
            for rank, (result, trace) in enumerate(zip(results, results.traces)):
                for case, own in zip(CASES, result):
                    for number, units in enumerate(own["seen"], 1):
                        where = f"{described(case, rank, ranks)}, after microbatch {number}"
                        self.holds_a_part(units, case, ranks, where)
                self.sends_one_half(trace, rank, ranks)
            all_waited_for(submission)

    def holds_a_part(self, units, case, ranks, where):
        own, _ = shares(case, ranks)
        for number, (unit, elements) in enumerate(zip(units, own)):
            expect.that(
                unit["gradient"] is not None,
                f"as above: {where}, unit {number}: shard.grad is None",
            )
            expect.that(
                unit["left"] == 0,
                f"{where}, unit {number}: its parameters still have their whole gradient: "
                "set `parameter.grad = None` on each, or stage 2 saves nothing",
            )
            least = NUMBER_BYTES[case.dtype] * elements
            expect.that(
                unit["held"] == least,
                f"{where}, unit {number}: shard.grad keeps {unit['held']} bytes alive for {least}: a slice keeps the "
                "whole tensor behind it; reduce_scatter into a tensor of its own",
            )
            expect.that(
                unit["beside"] < least * ranks,
                f"{where}: {unit['beside']} bytes that the calls have made are in memory beside every shard.grad, "
                f"and a whole gradient has {least * ranks}: after the call neither a whole gradient, a copy nor a "
                "buffer for the next call may stay, in no attribute and no global name",
            )

    def sends_one_half(self, trace, rank, ranks):
        units = sum(len(case.widths) - 1 for case in CASES) * self.microbatches
        kinds = {op.kind for op in trace.ops}
        expect.that(
            kinds == {"reduce_scatter"} and trace.count() == units,
            f"rank {rank} sent {plural(trace.count(), 'message')} ({', '.join(sorted(kinds)) or 'none'}) in {units} "
            "calls: one reduce_scatter each."
            + (
                " An all-reduce sends twice as much and leaves the whole sum on each rank"
                if "all_reduce" in kinds
                else ""
            ),
        )
        want = self.microbatches * sum(ring_bytes(case, ranks) for case in CASES)
        expect.that(
            trace.bytes_sent() == want,
            f"rank {rank} sent {trace.bytes_sent()} bytes, (N-1)/N of the gradients, in the dtype that they have, is {want}",
        )

    def equal_parts(self, units, case, batches, rank, where, forgotten=()):
        """batches: the microbatches since the shards' gradients were None; forgotten: those before."""
        ranks = len(batches[0])
        totals = [self.flat(case, [step], range(ranks), ranks) for step in batches]
        before = self.flat(case, forgotten, range(ranks), ranks) if forgotten else []
        alone = self.flat(case, batches, [rank], ranks)
        for number, unit in enumerate(units):
            parts = [total[number].chunk(ranks)[rank] / ranks for total in totals]
            whole = sum(total[number] for total in totals)
            expect.that(unit["gradient"] is not None, f"{where}, unit {number}: shard.grad is None")
            expect.equal(
                unit["gradient"],
                sum(parts),
                what=f"{where}, unit {number}: shard.grad (microbatches since it was None: {len(batches)})",
                hints=[
                    *self.mistakes_in_adding(parts, unit["gradient"], ranks),
                    *(
                        (
                            sum(parts) + old.chunk(ranks)[rank] / ranks,
                            "that holds the microbatches before shard.grad was set to None, too: "
                            "they come back from where you keep a sum of your own",
                        )
                        for old in before[number : number + 1]
                    ),
                    *(
                        (
                            sum(total[other].chunk(ranks)[rank] for total in totals) / ranks,
                            f"that is unit {other}'s, which has the same size: give each unit's "
                            "gradient memory of its own",
                        )
                        for other in range(len(units))
                        if other != number and len(totals[0][other]) == len(whole)
                    ),
                    (ranks * sum(parts), "that is the sum over ranks: op='avg'"),
                    (
                        alone[number].chunk(ranks)[rank],
                        "that is the rank's own gradient: it was never reduced",
                    ),
                    (
                        whole.chunk(ranks)[0] / ranks,
                        "that is rank 0's part: take that of group.rank",
                    ),
                    (whole / ranks, "that is the whole average: keep this rank's part of it"),
                    *self.rounded(unit["gradient"], sum(parts)),
                ],
            )

    @staticmethod
    def rounded(got, want):
        """A hint that names the dtype whose digits a gradient has that is nearly right."""
        if got.shape != want.shape or not (got - want).abs().max() < 0.02 * want.abs().max():
            return []
        for narrow in (torch.bfloat16, torch.float16, torch.float32):
            if got.dtype != narrow and torch.equal(got, got.to(narrow).to(got.dtype)):
                name = str(narrow).removeprefix("torch.")
                words = (
                    f"nearly: its numbers have the digits of {name} only. Send and keep gradients in "
                    "the dtype that they have"
                )
                return [(got, words)]
        return []

    def mistakes_in_adding(self, parts, got, ranks):
        """Nothing where there is one part, and all would be the same."""
        if len(parts) == 1:
            return []
        halved = parts[0]
        for part in parts[1:]:
            halved = (halved + part) / 2
        again = parts[0]
        for part in parts[1:]:
            again = again / ranks + part
        mean = "that is a mean of the microbatches: their parts add up, nothing divides them here"
        repeated = sum((len(parts) - place) * part for place, part in enumerate(parts))
        return [
            (
                repeated,
                "that has the earlier microbatches several times: their whole gradients were still there, and "
                "were reduced again. Set `parameter.grad = None` on each",
            ),
            (parts[-1], "that is the last microbatch's alone: add to a shard.grad that is there"),
            (sum(parts) / len(parts), mean),
            (halved, mean),
            (
                again,
                f"what was there before is divided by {ranks}, the number of ranks, with every microbatch that comes: it "
                "is an average already. Reduce the new gradient alone, and add its part",
            ),
            *self.counted(parts, got),
        ]

    def counted(self, parts, got):
        """How often each microbatch is in it, where that is a whole number."""
        for times in product(range(4), repeat=len(parts)):
            mixed = sum(count * part for count, part in zip(times, parts))
            if set(times) != {1} and expect.difference(got, mixed) is None:
                told = ", ".join(f"microbatch {k}: {n} x" for k, n in enumerate(times, 1))
                words = (
                    f"it holds {told}, and each belongs there once: what was reduced once may not be "
                    "reduced again, nor what is kept be written over"
                )
                return [(got, words)]
        return []

    @staticmethod
    def flat(case, batches, ranks, size):
        """The gradients of these ranks, summed over them and over microbatches, unit by unit."""
        model = probes.network(case)
        for step in batches:
            for rank in ranks:
                probes.squared_where_used(model, step[rank], rank == IDLE).backward()
        own, _ = shares(case, size)
        out = []
        for layer, length in zip(model.layers, own):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in layer.parameters()]
            flat = torch.cat([gradient.flatten() for gradient in grads])
            out.append(F.pad(flat, (0, length * size - flat.numel())))
        return out


class TestShardedUnit(Exercise):
    """Stage 3: parameters that come and go"""

    name = "ShardedUnit"
    reference = "minitrain.parallel.zero.plain:ShardedUnit"
    hidden = HIDDEN

    @check(points=3, title="gather gives the parameters, and after an update the new ones")
    def test_values(self, submission):
        wanted = [probes.values(layer) for layer in self.layers()]
        for ranks in (2, 3):
            for rank, units in enumerate(submission.launch(probes.gathered, ranks=ranks)):
                for number, (result, want) in enumerate(zip(units, wanted)):
                    where = (
                        f"rank {rank} of {ranks}, {NTH[number]} of two units that are alive at once"
                    )
                    self.comes_back(result, want, where)

    def layers(self):
        """Of the two units in the probe."""
        return probes.network(probes.LARGE).layers[1], probes.network(probes.SMALL).layers[0]

    def comes_back(self, result, want, where):
        expect.that(
            "empty" not in result,
            f"{where}: after {result.get('empty')} the parameters have no memory: gather() must give `full` its "
            "bytes, and free() must make the next gather send again (self.work = None)",
        )
        expect.equal(result["values"], want, what=f"{where}: the parameters after gather()")
        tripled = [3 * w for w in want]
        expect.equal(
            result["tripled"],
            tripled,
            what=f"{where}: every shard was tripled between free() and gather(); the parameters",
            hints=[
                (
                    want,
                    "those are the old ones: after free() the next gather must send again, and send "
                    "`self.shard` as it is then",
                )
            ],
        )
        expect.equal(
            result["gradient"],
            tripled[0].sum(0, keepdim=True),
            what=f"{where}: the gradient of a forward's input, from the parameters that its graph holds",
            hints=[
                (
                    want[0].sum(0, keepdim=True),
                    "that is from the old values, in other memory: the graph holds the tensors of the "
                    "forward, and gather() must fill the same memory again. Make no new `full`",
                )
            ],
        )

    @check(points=4, title="freed, it holds the shard alone; the parameters stay views of `full`")
    def test_bytes(self, submission):
        for ranks in (2, 3):
            for rank, units in enumerate(submission.launch(probes.gathered, ranks=ranks)):
                for number, (result, layer) in enumerate(zip(units, self.layers())):
                    where = f"rank {rank} of {ranks}, {NTH[number]} of two units"
                    elements = -(-sum(p.numel() for p in layer.parameters()) // ranks)
                    least = NUMBER_BYTES[layer.weight.dtype] * elements
                    expect.that(
                        result["shard"] == least,
                        f"{where}: the shard keeps {result['shard']} bytes alive, not {least}: as a view it keeps all "
                        "of `full`, it needs a tensor of its own",
                    )
                    self.is_new(result["at first"], where)
                    empty = result.get("empty")
                    expect.that(
                        empty is None,
                        f"as above: {where}: after {empty} the parameters have no memory",
                    )
                    for when in ("freed", "freed again"):
                        self.is_freed(result.get(when, 0), f"{where}, {when}")
                    whole = least * ranks
                    expect.that(
                        result.get("gathered") != 0,
                        f"{where}: gathered, the parameters have memory, but the storage of the first `full` has "
                        "none: do not make new tensors, give that storage its bytes again",
                    )
                    expect.that(
                        result.get("gathered", whole) == whole,
                        f"{where}: gathered, the storage of `full` has {result.get('gathered')} bytes, and needs {whole}: "
                        "resize_(self.full.nbytes)",
                    )
                    for when in ("freed", "freed again"):
                        self.is_alone(result.get(("beside", when), 0), whole, f"{where}, {when}")
                    expect.that(result.get("same"), f"{where}: {STILL_VIEWS}")

    def is_new(self, full, where):
        expect.that(
            full == 0,
            f"{where}, newly made: the storage of `full` has {full} bytes. __init__ ends with free(), when nothing "
            "was gathered yet: there, too, it must shrink it, full.untyped_storage().resize_(0)",
        )

    def is_freed(self, full, where):
        expect.that(
            full == 0,
            f"{where}: the storage of `full` has {full} bytes. To drop a name frees nothing while the graph of a "
            "forward holds the tensor: shrink it, full.untyped_storage().resize_(0)",
        )

    def is_alone(self, beside, whole, where):
        expect.that(
            beside < whole,
            f"{where}: {beside} bytes are in memory beside the shard, as many as the whole unit's {whole}: "
            "free() leaves no copy of the parameters",
        )

    @check(points=5, title="start_gather does not wait, gather does, and nothing is sent twice")
    def test_start(self, submission):
        for rank, result in enumerate(submission.launch(probes.started, ranks=2)):
            expect.that(
                result["freed"] == 0 or result["freed twice"] > 0,
                f"rank {rank}: three start_gather(), two gather() and a free(): the storage of `full` has {result['freed']} bytes, "
                "and none after one more free(). One free() empties it, however often somebody gathered",
            )
            self.is_freed(result["freed"], f"rank {rank}, freed")
            (run,) = relayed.runs(submission.notes[rank], "turns", 1)
            waits = {mark: relayed.waits(before) for mark, before in relayed.before_marks(run)}
            count, count_after_free = len(waits["used"]), len(relayed.waits(run))
            expect.that(
                waits["started"],
                f"rank {rank}: start_gather() sent nothing, so nothing can be prefetched",
            )
            expect.that(
                not any(waits["begun"]),
                f"rank {rank}: start_gather() waited for its message: issue it with async_op=True and keep the work; "
                "gather() waits",
            )
            expect.that(
                not any(waits["started"]),
                f"rank {rank}: a second start_gather(), while the message of the first is under way, waited for it: where a "
                "work is there it returns at once; gather() and free() wait",
            )
            expect.that(
                count == 1,
                f"rank {rank}: three start_gather() and two gather() without a free() sent {count} messages, "
                "expected 1: from start_gather() to free() `self.work` stays, and where a work is there, nothing is to be sent",
            )
            expect.that(
                waits["gathered"] and all(waits["gathered"]),
                f"rank {rank}: after start_gather() and gather() a message is still under way: gather() must wait for "
                "it, whoever has begun it, or the unit computes with what has not arrived",
            )
            expect.that(
                count_after_free == 1,
                f"rank {rank}: two free() after that sent {count_after_free - 1} messages more: free() sends "
                "nothing, whether `full` is there or not",
            )

    @check(points=2, title="free waits for what is still arriving")
    def test_unused(self, submission):
        words = (
            "start_gather(), then free() without a gather between: the memory is gone while data is "
            "still arriving in it. free() must wait for the work first"
        )
        with expect.because({"died": words}):
            results = submission.launch(probes.unused, ranks=2)
        for rank, result in enumerate(results):
            expect.that(
                result["freed"] == 0,
                f"rank {rank}: after start_gather() and free(), without a gather() between, the storage of `full` has "
                f"{result['freed']} bytes: there, too, free() must wait for the work, and then shrink it",
            )
            (run,) = relayed.runs(submission.notes[rank], "turns", 1, ["at last"])
            waits = relayed.waits(run)
            expect.that(
                waits,
                f"as above: rank {rank}: start_gather() sent nothing that free() could wait for",
            )
            expect.that(all(waits), f"rank {rank}: {words}")
            expect.that(
                result["values"] is not None,
                f"rank {rank}: after start_gather(), free(), gather() the parameters have no memory: free() must "
                "make the next gather send again (self.work = None)",
            )
            expect.equal(
                result["values"],
                probes.values(self.layers()[0]),
                what=f"rank {rank}: the parameters after start_gather(), free(), gather()",
            )


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

    @check(
        points=4,
        title="three steps equal one process, nothing stays full (2 and 3 ranks, 1, 3 and 5 units)",
    )
    def test_parameters(self, submission):
        for ranks in (2, 3):
            batches, results = self.results(submission, ranks)
            for case, steps, *own in zip(self.cases, batches, *results):
                units = len(case.widths) - 1
                for result in own:
                    for each in result["passes"]:
                        self.nothing_left(each, units)
                try:
                    equal_parameters(own, case, steps, zero3_losses)
                except CheckFailed:
                    for each in own[0]["passes"]:  # where nobody waited, that is the cause
                        self.has_waited(each, units, described(case, 0, ranks))
                    raise

    def nothing_left(self, each, units):
        expect.that(
            each["left"] == 0,
            "after backward parameters still have their whole gradient: reduce_unit(unit) when they "
            "are complete",
        )
        expect.that(
            each["after backward"] == 0,
            f"after {'backward' if each['training'] else 'a forward in evaluation'} "
            f"{units_are(each['after backward'])} still full: the next step would compute "
            f"with old parameters.{why_full(each, 'after backward', units)}",
        )

    @check(points=8, title="one unit ahead, both ways, and two at a time at most")
    def test_prefetch(self, submission):
        _, results = self.results(submission, 2)
        for rank, result in enumerate(results):
            for case, own in zip(self.cases, result):
                where = described(case, rank, 2)
                for turn in range(len(own["passes"])):
                    self.keeps_the_order(own["passes"], turn, len(case.widths) - 1, where)

    def keeps_the_order(self, passes, turn, units, where):
        """turn: which of the passes it is."""
        each, before = passes[turn], ""
        if turn > 0:
            where = f"{where}, pass {turn + 1} ({'training' if each['training'] else 'evaluation'})"
            before = " (in the passes before it was: a unit's place in `units` does not depend on what ran before)"
            if not each["training"] and all(other["training"] for other in passes[:turn]):
                before = " (in training it was: in evaluation, too, the next one is on its way while a unit computes)"
        self.are_all_freed(each, "after forward", units, where)
        self.is_one_ahead(each, units, where, before)
        self.are_two_at_most(each, where)
        self.are_all_freed(each, "after backward", units, where)

    def has_waited(self, each, units, where):
        lines = [tuple(line[:2]) for line in each["log"]]
        for what, number, _ in self.pairs(each, units):
            now = lines.index((what, number))
            expect.that(
                ("gather", number) in since_free(lines, number, now),
                f"{where}: the {what} of unit {number} began and nobody had waited for its parameters: start_gather() "
                "only begins; gather() the unit that computes now",
            )

    def pairs(self, each, units):
        """(forward or backward, a unit, the next in this order)."""
        pairs = [("forward", k, k + 1) for k in range(units)]
        if each["training"]:
            pairs += [("backward", k, k - 1) for k in reversed(range(units))]
        return pairs

    def is_one_ahead(self, each, units, where, before_too):
        """before_too: words about the passes before, in which it was."""
        lines = [tuple(line[:2]) for line in each["log"]]
        for what, number, following in self.pairs(each, units):
            now = lines.index((what, number))
            expect.that(
                ("gather", number) in since_free(lines, number, now),
                f"{where}: the {what} of unit {number} began and nobody had waited for its parameters: start_gather() "
                "only begins; gather() the unit that computes now",
            )
            if not 0 <= following < units:
                continue
            before = since_free(lines, following, now)
            expect.that(
                ("start", following) in before,
                f"{where}: when the {what} of unit {number} began, the gather of unit {following} was not "
                f"under way: start_gather() of the next in {what} order belongs into before_{what}{before_too}",
            )
            expect.that(
                ("gather", following) not in before,
                f"{where}: before the {what} of unit {number} it waited for unit {following}: nothing is hidden. "
                "start_gather() the next one, gather() only the one that computes now",
            )

    def are_two_at_most(self, each, where):
        for what, number, *held in each["log"]:
            full, large = held or (0, 0)
            expect.that(
                full <= 2,
                f"{where}: at the {what} of unit {number} {full} units were full: this one and the "
                "next are two; free() each when its forward and its backward are done",
            )
            expect.that(
                large < 2 * probes.WHOLE_WEIGHT,
                f"{where}: at the {what} of unit {number} {large} bytes of whole units were in memory beside "
                f"the {plural(full, 'unit')} that may be full: keep no copy of what gather() brought, and no gradient "
                "that was not reduced",
            )
        expect.that(
            each["beside"] < probes.WHOLE_WEIGHT,
            f"{where}: after the pass {each['beside']} bytes are in memory beside the shards' gradients: keep no "
            "copy of what gather() brought, nor of whole gradients",
        )

    def are_all_freed(self, each, when, units, where):
        expect.that(
            each[when] == 0,
            f"{where}, {when}: {units_are(each[when])} still full.{why_full(each, when, units)}",
        )

    @check(points=2, title="forward and backward send 3(N-1)/N of the parameters, and no more")
    def test_sent(self, submission):
        ranks = 3
        _, results = self.results(submission, ranks)
        for rank, result in enumerate(results):
            for case, own in zip(self.cases, result):
                units, where = len(case.widths) - 1, described(case, rank, ranks)
                for turn, each in enumerate(own["passes"]):
                    try:
                        self.keeps_the_order(own["passes"], turn, units, where)
                    except CheckFailed as failure:
                        raise CheckFailed(f"as above: {failure}") from None
                    self.sends(each, case, where, ranks)

    def sends(self, each, case, where, ranks):
        units, is_training = len(case.widths) - 1, each["training"]
        kinds = [kind for kind, _ in each["ops"]]
        count = (kinds.count("all_gather"), kinds.count("reduce_scatter"))
        name, words = (
            ("a forward and backward", "two and one a unit")
            if is_training
            else ("a forward in evaluation", "one and none a unit")
        )
        expect.that(
            count == ((2 * units, units) if is_training else (units, 0)),
            f"{where}: {count[0]} all-gathers and {count[1]} reduce-scatters in {name}: {words}",
        )
        sent = sum(size for _, size in each["ops"])
        want = (3 if is_training else 1) * ring_bytes(case, ranks)
        expect.that(
            sent == want,
            f"{where}: {sent} bytes sent in {name}, {3 if is_training else 1}(N-1)/N is {want}",
        )


def units_are(count):
    return f"{plural(count, 'unit')} {'is' if count == 1 else 'are'}"


def why_full(each, when, units):
    """Of a pass after which units are full: which ones, and whether they were freed and begun again."""
    lines = [tuple(line[:2]) for line in each["log"]]
    if when == "after forward":
        end = max(i for i, (what, _) in enumerate(lines) if what == "forward") + 1
        while end < len(lines) and lines[end][0] == "free":
            end += 1
        lines = lines[:end]
    full, again = [], []
    for unit in range(units):
        begun = [i for i, line in enumerate(lines) if line == ("start", unit)]
        freed = [i for i, line in enumerate(lines) if line == ("free", unit)]
        computed = [
            i for i, line in enumerate(lines) if line in (("forward", unit), ("backward", unit))
        ]
        if begun and begun[-1] > max(freed, default=-1):
            (again if begun[-1] > max(computed, default=-1) else full).append(unit)
    if len(full) + len(again) != each[when]:
        return " Each must be freed when it has computed."
    in_backward = each["training"] and when == "after backward"
    if full:
        return (
            f" {numbered(full)} was not freed after it had computed."
            if len(full) == 1
            else (f" {numbered(full)} were not freed after they had computed.")
        )
    if not in_backward and again == [0] and units > 1:
        return (
            " Unit 0 was freed and then begun again: the last unit has none after it (place + 1 modulo "
            "the number of units is the first)."
        )
    if in_backward and again == [units - 1] and lines.index(("backward", 0)) > 0 and units > 1:
        first = lines.index(("backward", 0))
        late = max(i for i, line in enumerate(lines) if line == ("start", units - 1))
        if lines.index(("backward", 1)) < late <= first:
            return (
                f" Unit {units - 1} was freed and then begun again: the first unit has none before it, and "
                "units[-1] is the last, not nothing."
            )
    return (
        f" {numbered(again)} {'was' if len(again) == 1 else 'were'} freed and then begun again: "
        "start_gather() only the next one in the order in which they compute now."
    )


def numbered(units):
    """As the exercise names them: `units[0]` is the first."""
    return ", ".join(f"`units[{unit}]`" for unit in units)


def since_free(lines, unit, now):
    """What was called before line `now`, from when this unit was last freed."""
    begin = max((i for i in range(now) if lines[i] == ("free", unit)), default=0)
    return lines[begin:now]


UNREAD = {
    "OverflowError": "a step counted with what happened to be in memory: a state that has got its bytes back holds "
    "nothing yet, read it from the store before the step",
}


class TestOffloadedStep(Exercise):
    """Optimizer state in a store"""

    name = "offloaded_step"
    reference = "minitrain.parallel.zero.plain:offloaded_step"
    hidden = HIDDEN
    makes = (partial(torch.optim.AdamW, lr=1e-2), probes.SGD)
    sizes = ((5, 9, 4), (6, 6))

    def results(self, submission):
        """shards[run], gradients[run][step]; one unit of the second run has none at first."""
        shards = [[torch.randn(n, dtype=torch.float64) for n in own] for own in self.sizes]
        gradients = [[[torch.randn_like(s) for s in own] for _ in range(STEPS)] for own in shards]
        gradients[1][0][1] = None
        with expect.because(UNREAD):
            run = submission.run(probes.offload_steps, self.makes, shards, gradients)
        return shards, gradients, run

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
        shards, gradients, results = self.results(submission)
        for make, own, steps, result in zip(self.makes, shards, gradients, results):
            problems = "; ".join(dict.fromkeys(result["problems"]))
            name, other = make.func.__name__, self.makes[0].func.__name__
            second = make is not self.makes[0]
            which = (
                f"the run with {name}, whose steps take turns with those of the {other} run and which has "
                "optimizers and a store of its own"
            )
            expect.that(
                not problems,
                f"{which if second else 'the run with ' + name}: the store says: {problems}. {self.turn(result['steps'])}",
            )
            forgetful = self.stepped(make, own, steps, forgets=True)
            shared = self.written_twice(result["steps"])
            expect.equal(
                result["shards"],
                self.stepped(make, own, steps),
                what=f"{make.func.__name__}, the {len(own)} shards after three steps",
                hints=[
                    (
                        forgetful,
                        f"that is {make.func.__name__} whose state is new at every step: read it back",
                    ),
                    *([(result["shards"], shared)] if shared else []),
                ],
            )

    @staticmethod
    def turn(steps):
        """Words for what is wrong in the order of a turn."""
        if not any(what == "write" for what, _ in steps[0]["calls"]):
            return (
                "Step 1 wrote nothing: `state_tensors` has [] before the first step, which makes the state. Ask it again "
                "after the step, and write what it gives then"
            )
        return (
            "Read only a state that is there, give its tensors their memory (resize_(tensor.nbytes)) before the read, "
            "write them after the step, free them after the write"
        )

    @staticmethod
    def written_twice(steps):
        """Words for a step that wrote two units under one key."""
        for number, step in enumerate(steps, 1):
            writes = [key for what, key in step["calls"] if what == "write"]
            if len(set(writes)) < len(writes):
                return f"step {number} wrote {writes}: of two units under one key the later is kept"
        return ""

    @check(points=4, title="in memory: one unit's state at a time, and none after the step")
    def test_memory(self, submission):
        _, _, results = self.results(submission)
        for make, result in zip(self.makes, results):
            for number, step in enumerate(result["steps"], 1):
                self.one_at_a_time(number, step, make)

    def one_at_a_time(self, number, step, make):
        units = len(step["seen"])
        counters = 4 * units  # AdamW's, one float32 without dimensions a parameter
        if not any(what == "write" for what, _ in step["calls"]):
            words = (
                "it wrote nothing to the store. Write each unit's state, as `state_tensors` gives it after step(), "
                "then give its memory back"
            )
        elif make is self.makes[0] and step["left"] == counters:
            words = (
                f"that is one number for each of the {units} units, AdamW's step counters: `state_tensors` "
                "has them as well, write and free every tensor of it"
            )
        else:
            words = (
                "every tensor that `state_tensors` has after the step must be written and give its memory "
                "back, tensor.untyped_storage().resize_(0)"
            )
        expect.that(
            step["left"] == 0,
            f"after step {number} {step['left']} bytes of state are in memory: {words}",
        )
        for place, (own, others) in enumerate(step["seen"]):
            expect.that(
                others == 0,
                f"step {number}: while `optimizers[{place}]` stepped with {own} bytes of state, {others} bytes of others' "
                "state were in memory: read, step, write and free unit by unit",
            )

    @check(points=3, title="a step reads and writes each unit once, and commits at its end")
    def test_store(self, submission):
        _, gradients, results = self.results(submission)
        for make, steps, result in zip(self.makes, gradients, results):
            had = 0  # units with a state
            for number, step in enumerate(result["steps"], 1):
                try:
                    self.one_at_a_time(number, step, make)
                except CheckFailed as failure:
                    raise CheckFailed(f"as above: {failure}") from None
                has = sum(
                    any(s[unit] is not None for s in steps[:number])
                    for unit in range(len(steps[0]))
                )
                self.once_each(number, step["calls"], had, has)
                had = has

    def once_each(self, number, calls, had, has):
        writes = [key for what, key in calls if what == "write"]
        reads = [key for what, key in calls if what == "read"]
        expect.that(
            len(writes) == len(set(writes)) == has,
            f"step {number} wrote {writes}: each of the {has} units with a state once, under a key of its own",
        )
        expect.that(
            len(reads) == len(set(reads)) == had,
            f"step {number} read {reads}: expected {had} reads. What has made no state yet has nothing in the store; "
            "from then on, each unit once",
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
