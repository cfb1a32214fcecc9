"""The checks of lab e02: data parallelism, graded by what is sent, and when."""

from __future__ import annotations

import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check

from .probes import e02_data_parallel as probes

LAB = "e02_data_parallel"
SIZES = {
    "cpu": {
        "preset": "1M",
        "layers": 2,
        "batch": 4,
        "length": 64,
        "repeats": 5,
        "ranks": [1, 2, 4, 8],
        "emulated_repeats": 3,
        "parameters_each": 1800,
        "tokens_each": 64,
    },
    "test": {"repeats": 2, "ranks": [1, 8]},
    "gpu": {"preset": "30M", "layers": 8, "batch": 16, "length": 512},
    "multi": {"preset": "100M", "layers": 12, "batch": 16, "length": 1024},
}
DDP_FILE = "minitrain/parallel/ddp.py"


def batches_of(ranks, rows=3):
    return [torch.randn(rows, probes.WIDTH, dtype=torch.float64) for _ in range(ranks)]


def one_process(batches, sides=None):
    """Gradients of the mean over all ranks' batches, and each rank's own."""
    own = []
    for index, batch in enumerate(batches):
        model = probes.network()
        probes.squared(model, batch, with_side=sides is None or sides[index]).backward()
        own.append({n: torch.zeros_like(p) if p.grad is None else p.grad
                    for n, p in model.named_parameters() if p.requires_grad})  # fmt: skip
    mean = {name: sum(g[name] for g in own) / len(own) for name in own[0]}
    return mean, own


def equal_gradients(results, batches, sides=None):
    mean, own = one_process(batches, sides)
    ranks = len(batches)
    weights = {n: p.detach() for n, p in probes.network().named_parameters() if p.requires_grad}
    for rank, got in enumerate(results):
        for name, want in mean.items():
            expect.that(
                got.get(name) is not None,
                f"rank {rank}, {name}: its gradient is None. A parameter that this rank did not use "
                "counts as zero in the average; the other ranks have a part of it",
            )
            expect.equal(
                got[name],
                want,
                what=f"rank {rank} of {ranks}, gradient of {name}",
                hints=[
                    (want * ranks, "that is the sum over ranks: divide by the number of ranks"),
                    (
                        own[rank][name],
                        "that is the rank's own gradient: it was never averaged with the others', "
                        "or the average was not copied back into `.grad`",
                    ),
                    (
                        own[rank][name] / ranks,
                        "that is the rank's own gradient, divided: it was never added to the others'",
                    ),
                    (
                        want / ranks,
                        "that is divided by the number of ranks twice (op='avg' divides already)",
                    ),
                    (
                        weights[name],
                        "those are the weights: a hook is handed the *parameter*, its gradient is parameter.grad",
                    ),
                ],
            )


def launch_unused(submission, probe, batches, *rest):
    """A launch in which only rank 0 has every gradient; a hang is told its likely cause."""
    words = "a rank without this gradient must contribute zeros"
    with expect.because({(*expect.HANGS, "NoneType"): words}):
        return submission.launch(probe, batches, *rest, ranks=len(batches), timeout=8)


class TestAllReduceGradients(Exercise):
    """Naive data parallelism"""

    name = "all_reduce_gradients"
    reference = "minitrain.parallel.ddp:all_reduce_gradients"
    hidden = (DDP_FILE,)

    @check(
        points=6,
        title="every gradient equals one process on the joined batch (2 and 3 ranks, float64)",
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            batches = batches_of(ranks)
            equal_gradients(submission.launch(probes.after_backward, batches, ranks=ranks), batches)

    @check(points=3, title="one all-reduce for each trainable parameter, tied ones once")
    def test_messages(self, submission):
        results = submission.launch(probes.after_backward, batches_of(2), ranks=2)
        names = probes.gradients(probes.network())
        sizes = {n: p.nbytes for n, p in probes.network().named_parameters() if p.requires_grad}
        for rank, trace in enumerate(results.traces):
            ops = trace.select("all_reduce")
            expect.that(
                len(ops) == len(names),
                f"rank {rank} made {len(ops)} all-reduces for {len(names)} trainable parameters: one each, "
                "none for frozen ones, and model.parameters() names a tied one once",
            )
            sent = sum(op.payload_bytes for op in ops)
            expect.that(
                sent == sum(sizes.values()),
                f"{sent} bytes were reduced, the gradients have {sum(sizes.values())}",
            )

    @check(points=3, title="a parameter that only one rank used does not hang the others")
    def test_unused(self, submission):
        batches = batches_of(3)
        results = launch_unused(submission, probes.some_unused, batches)
        equal_gradients(results, batches, sides=[True, False, False])


class TestBucketed(Exercise):
    """Buckets"""

    name = "all_reduce_gradients_bucketed"
    reference = "minitrain.parallel.ddp:all_reduce_gradients_bucketed"
    hidden = (DDP_FILE,)

    @check(points=6, title="every gradient equals one process, for buckets of any size")
    def test_gradients(self, submission):
        for ranks, nbytes in [(2, 1), (2, 400), (3, 10**6)]:
            batches = batches_of(ranks)
            results = submission.launch(probes.after_backward, batches, nbytes, ranks=ranks)
            equal_gradients(results, batches)

    @check(points=4, title="as few all-reduces as the bucket size allows")
    def test_count(self, submission):
        parameters = [p for p in probes.network().parameters() if p.requires_grad]
        total = sum(p.nbytes for p in parameters)
        for nbytes, least, most in [
            (10**6, 1, 1),
            (600, 2, 4),
            (1, len(parameters), len(parameters)),
        ]:
            results = submission.launch(probes.after_backward, batches_of(2), nbytes, ranks=2)
            ops = results.traces[0].select("all_reduce")
            expect.that(
                least <= len(ops) <= most,
                f"buckets of {nbytes} bytes for {total} bytes in {len(parameters)} parameters: {len(ops)} "
                f"all-reduces, expected {least} to {most}. Fill a bucket until the next gradient does not fit; "
                "a gradient larger than a bucket gets one to itself",
            )
            largest = max(op.payload_bytes for op in ops)
            expect.that(
                largest <= max(nbytes, *(p.nbytes for p in parameters)),
                f"a bucket of {largest} bytes was sent, the limit is {nbytes}: start a new one before it overflows",
            )

    @check(points=3, title="the first bucket holds the last parameters: backward makes those first")
    def test_order(self, submission):
        parameters = [p for p in probes.network().parameters() if p.requires_grad]
        results = submission.launch(probes.after_backward, batches_of(2), 1, ranks=2)
        sizes = [op.payload_bytes for op in results.traces[0].select("all_reduce")]
        expect.that(
            sizes == [p.nbytes for p in reversed(parameters)],
            f"with a bucket a parameter the bytes were {sizes}, in reverse order of registration they are "
            f"{[p.nbytes for p in reversed(parameters)]}: walk reversed(parameters)",
        )

    @check(points=3, title="a parameter that only one rank used counts as zero")
    def test_unused(self, submission):
        batches = batches_of(2)
        results = launch_unused(submission, probes.some_unused, batches, 400)
        equal_gradients(results, batches, sides=[True, False])


def all_waited(results):
    """The results, of ranks that waited for everything that they began."""
    for rank, trace in enumerate(results.traces):
        expect.that(
            all(op.waited is not None for op in trace.select("all_reduce")),
            f"rank {rank}: a work was never waited for: call `work.wait()` in finish()",
        )
    return results


class TestDDP(Exercise):
    """Overlapped with backward"""

    name = "DDP"
    reference = "minitrain.parallel.ddp:DDP"
    hidden = (DDP_FILE,)

    @check(points=6, title="every gradient equals one process, in the second step too")
    def test_gradients(self, submission):
        for ranks, nbytes in [(2, 400), (3, 1)]:
            batches = batches_of(ranks)
            results = submission.launch(probes.wrapped, batches, nbytes, ranks=ranks, timeout=8)
            all_waited(results)
            equal_gradients([r["first"] for r in results], batches)
            try:
                equal_gradients([r["gradients"] for r in results], batches)
            except CheckFailed as failure:
                raise CheckFailed(
                    f"the first step is right, the second is not: {failure}\n"
                    "finish() must end by emptying the works and refilling each `missing`"
                ) from None

    @check(points=6, title="a full bucket is sent while backward still computes")
    def test_overlap(self, submission):
        results = submission.launch(probes.stamped, batches_of(2), ranks=2, timeout=8)
        for rank, result in enumerate(results):
            expect.that(
                len(result["issued"]) == 2,
                f"rank {rank} issued {len(result['issued'])} all-reduces for two buckets",
            )
            expect.that(
                result["issued"][0] < result["halfway"],
                f"rank {rank} issued its first all-reduce only after the lower layer's backward had begun: nothing is "
                "overlapped. Send a bucket in the hook that fills it, not in finish()",
            )

    @check(points=4, title="one asynchronous all-reduce a bucket, in the same order on all ranks")
    def test_messages(self, submission):
        results = submission.launch(probes.wrapped, batches_of(2), 10**6, ranks=2, timeout=8)
        for rank, result in enumerate(results):
            count = result["kinds"].count("all_reduce")
            expect.that(
                count == 1,
                f"rank {rank} made {count} all-reduces for one bucket: send it once, when it is full",
            )
        results = submission.launch(probes.stamped, batches_of(2), ranks=2, timeout=8)
        for rank, result in enumerate(all_waited(results)):
            expect.that(result["waited"], f"rank {rank} made no all-reduce")
            expect.that(
                result["waited"][0] > result["halfway"],
                f"rank {rank} waited in the hook for its first all-reduce: backward stood still meanwhile, so nothing "
                "is hidden. Issue it with async_op=True, and wait in finish()",
            )
        traces = submission.launch(probes.wrapped, batches_of(2), 1, ranks=2, timeout=8).traces
        orders = [[op.payload_bytes for op in trace.select("all_reduce")] for trace in traces]
        expect.that(orders[0] == orders[1], f"the ranks sent buckets in different orders: {orders}")

    @check(
        points=4, title="a layer that only rank 0 used does not hang the others, nor mix up buckets"
    )
    def test_unused(self, submission):
        batches = batches_of(3)
        results = all_waited(launch_unused(submission, probes.wrapped, batches, 1, "some"))
        equal_gradients([r["gradients"] for r in results], batches, sides=[True, False, False])


class TestAccumulate(Exercise):
    """Accumulation without needless messages"""

    name = "accumulate"
    reference = "minitrain.parallel.ddp:accumulate"
    hidden = (DDP_FILE,)

    @check(points=6, title="the gradients are those of one large batch")
    def test_gradients(self, submission):
        batches = batches_of(4)
        got = submission.run(probes.accumulated, batches)["gradients"]
        mean, own = one_process(batches)
        for name, want in mean.items():
            expect.equal(
                got[name],
                want,
                what=f"gradient of {name}",
                hints=[
                    (
                        want * 4,
                        "that is 4 times too large: divide each loss by the number of microbatches",
                    ),
                    (
                        own[-1][name],
                        "that is the last microbatch's alone: gradients must add up, do not zero them in between",
                    ),
                    (
                        own[-1][name] / 4,
                        "that is the last microbatch's alone: gradients must add up, do not zero them in between",
                    ),
                ],
            )

    @check(points=4, title="only the last of the microbatches synchronizes")
    def test_sync(self, submission):
        for count in (1, 4):
            log = submission.run(probes.accumulated, batches_of(count))["log"]
            want = [False] * (count - 1) + [True]
            expect.that(
                log == want,
                f"{count} microbatches synchronized {log}, expected {want}: all but the last run inside ddp.no_sync(), "
                "and forward must be inside too",
            )

    @check(points=2, title="it returns the mean loss")
    def test_loss(self, submission):
        batches = batches_of(3)
        got = submission.run(probes.accumulated, batches)["loss"]
        with torch.no_grad():
            losses = [probes.squared(probes.network(), batch) for batch in batches]
        expect.equal(
            got if isinstance(got, torch.Tensor) else torch.tensor(got, dtype=torch.float64),
            sum(losses) / 3,
            what="the loss",
            hints=[
                (sum(losses), "that is the sum: return the mean"),
                (losses[-1], "that is the last one's"),
            ],
        )


class TestMeasured(Experiment):
    """One and two ranks, measured here"""

    name = "measured"

    @check(points=5, title="each rank sent exactly 2(N-1)/N of its gradients' bytes")
    def test_bytes(self, table):
        for row in table:
            want = 2 * (row["ranks"] - 1) * 4 * row["parameters"] // row["ranks"]
            expect.that(
                abs(row["sent_bytes"] - want) <= 8 * row["all_reduces"] + 8,
                f"{row['variant']} on {row['ranks']} ranks sent {row['sent_bytes']} bytes a step, "
                f"2(N-1)/N · 4 · {row['parameters']} is {want}",
            )

    @check(points=3, title="buckets mean fewer messages than parameters")
    def test_messages(self, table):
        count = {(row["variant"], row["ranks"]): row["all_reduces"] for row in table}
        for variant in ("naive", "bucketed", "overlapped"):
            expect.that((variant, 2) in count, f"there is no row of '{variant}' on 2 ranks")
        expect.that(
            count["bucketed", 2] < count["naive", 2] and count["overlapped", 2] < count["naive", 2],
            f"all-reduces a step on 2 ranks: {count}; a bucket should hold several gradients",
        )


class TestOverlap(Experiment):
    """What is exposed, what is hidden"""

    name = "overlap"

    @check(points=4, title="naive hides nothing; overlapped sends before backward ends")
    def test_hidden(self, table):
        rows = {row["variant"]: row for row in table}
        for variant in ("naive", "bucketed", "overlapped"):
            expect.that(variant in rows, f"there is no row of '{variant}'")
        for variant in ("naive", "bucketed"):
            row = rows[variant]
            expect.that(
                row["hidden_seconds"] <= 0.1 * row["exposed_seconds"],
                f"{variant} hid {row['hidden_seconds']:.2e} s of communication, yet it sends after backward",
            )
        row = rows["overlapped"]
        expect.that(
            row["hidden_seconds"] > 0, "overlapped hid nothing: was it measured with your DDP?"
        )

    @check(points=4, title="overlapped waits less than naive")
    def test_exposed(self, table):
        exposed = {row["variant"]: row["exposed_seconds"] for row in table}
        expect.that(
            exposed["overlapped"] < exposed["naive"],
            f"exposed seconds: {exposed}; overlap should leave less of it to wait for. Run the cell again",
        )


class TestScaling(Experiment):
    """Efficiency from 1 to 8 ranks"""

    name = "scaling"

    @check(
        points=4,
        title="four fabrics, 1 to 8 ranks; efficiency is the part of the step that computes",
    )
    def test_rows(self, table):
        fabrics = {row["fabric"] for row in table}
        expect.that(len(fabrics) >= 4, f"fabrics {sorted(fabrics)}: four are asked for")
        for row in table:
            want = 1 - row["exposed_seconds"] / row["step_seconds"]
            expect.close(
                row["efficiency"],
                want,
                tol=0.01,
                what=f"{row['fabric']}, {row['ranks']} ranks: 1 - exposed/step",
            )
            if row["ranks"] == 1:
                expect.that(
                    row["efficiency"] > 0.99,
                    f"one rank has nobody to wait for, efficiency {row['efficiency']:.2f}",
                )

    @check(points=5, title="NVLink keeps what Ethernet loses, and overlap never hurts much")
    def test_order(self, table):
        at8 = {
            (row["fabric"], row["variant"]): row["efficiency"] for row in table if row["ranks"] == 8
        }
        fast = max(value for (_, variant), value in at8.items() if variant == "overlapped")
        slow = min(value for (_, variant), value in at8.items() if variant == "overlapped")
        expect.that(
            fast > slow + 0.1,
            f"all fabrics keep {slow:.0%} to {fast:.0%} on 8 ranks: they should differ",
        )
        for (fabric, variant), value in at8.items():
            other = at8.get((fabric, "naive"))
            if variant == "overlapped" and other is not None:
                expect.that(
                    value > other - 0.1,
                    f"{fabric}: {value:.0%} overlapped, {other:.0%} naive. Close other programs and run it again",
                )


class TestOverlapSpeedup(Question):
    """What overlap is worth"""

    name = "overlap_speedup"

    @check(points=5, title="naive step over overlapped step")
    def test_value(self, value, records):
        seconds = {
            row["variant"]: row["step_seconds"] for row in expect.recorded(records, "overlap")
        }
        for variant in ("naive", "overlapped"):
            expect.that(variant in seconds, f"your table has no row of '{variant}'")
        speedup = seconds["naive"] / seconds["overlapped"]
        words = "divide the naive row's step_seconds by the overlapped row's"
        if abs(value * speedup - 1) < 0.02:
            words = "that is the time that is left; turn the fraction round"
        expect.that(abs(value / speedup - 1) < 0.02, f"got {value:.3g}: {words}")


class TestBottleneck(Question):
    """The bottleneck, from your own trace"""

    name = "bottleneck"

    @check(points=5, title="of the slowest fabric on 8 ranks")
    def test_value(self, value, records):
        rows = [
            r
            for r in expect.recorded(records, "scaling")
            if r["ranks"] == 8 and r["variant"] == "overlapped"
        ]
        expect.that(rows, "your table has no overlapped row with 8 ranks")
        row = min(rows, key=lambda r: r["efficiency"])
        compute = row["step_seconds"] - row["exposed_seconds"]
        if compute > row["exposed_seconds"]:
            want = "compute"
        else:
            latency = row["latency_seconds"]
            want = "latency" if latency > 0.5 * row["exposed_seconds"] else "bandwidth"
        expect.that(
            value == want,
            f"got {value!r}. In the row of {row['fabric']} compare compute (step - exposed) with waiting (exposed), "
            "and latency_seconds with half of the waiting",
        )


class TestTokensToHide(Question):
    """Where compute equals communication"""

    name = "tokens_to_hide"

    @check(
        points=5, title="tokens a rank at which compute equals communication on the slowest fabric"
    )
    def test_value(self, value, records):
        rows = [
            r
            for r in expect.recorded(records, "scaling")
            if r["ranks"] == 8 and r["variant"] == "overlapped"
        ]
        expect.that(rows, "your table has no overlapped row with 8 ranks")
        row = min(rows, key=lambda r: r["efficiency"])
        compute = row["step_seconds"] - row["exposed_seconds"]
        want = row["tokens"] * row["communication_seconds"] / compute
        each = SIZES["cpu"]["tokens_each"]
        expect.close(
            value,
            want,
            tol=0.05,
            what="tokens a rank",
            hints=[
                (
                    row["tokens"] * compute / row["communication_seconds"],
                    "that is upside down: more communication needs more tokens",
                ),
                (
                    want * each,
                    f"that is {each} times too many: count tokens as the column `tokens` does",
                ),
                (
                    want / row["tokens"],
                    "that is how many times as many: multiply by the tokens that a rank has now",
                ),
            ],
        )
