"""The checks of lab e12: reliability, graded by what is left after a power cut, a kill, a resume."""

from __future__ import annotations

import math
import statistics
import zlib
from itertools import zip_longest
from random import randint, random, sample, uniform

import torch

from minitrain.generators import generator_states, restore_generators
from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.variants import cause, hints, variant
from minitrain.planning.failures.replay import llama3_law
from minitrain.reliability.disk import FragileDisk

from .probes import e12_reliability as probes

LAB = "e12_reliability"
SIZES = {
    "cpu": {
        "parameters": 4_000_000, "saves": 3, "spike_steps": 240, "corpus": 300_000,
        "failures": 1_000_000, "replays": 20,
    },
    "test": {
        "parameters": 500_000, "saves": 2, "spike_steps": 140, "corpus": 100_000,
        "failures": 300_000, "replays": 5,
    },
}  # fmt: skip
REVEALS = {
    "stall_ratio": Reveal("measured", "seconds of a save that waits over seconds of a copy"),
    "waiting": Reveal("measured", "percent of all ranks' time"),
    "hours": Reveal(
        "computed",
        "chip-hours between interruptions / chips",
        formula=lambda chips: llama3_law().chip_hours / chips,
    ),
}
HIDDEN = (
    "minitrain/reliability/plain.py",
    "minitrain/reliability/checkpoint/background.py",
    "minitrain/reliability/stragglers.py",
    "minitrain/reliability/spikes.py",
    "minitrain/planning/failures/intervals.py",
)


# --- files ---


def sealed(data):
    return zlib.crc32(data).to_bytes(4, "little") + data


def name_of(step):
    return f"step-{step:08d}"


def some_bytes(count):
    return bytes(randint(0, 255) for _ in range(count))


def replayed(files, log):
    """The disk at first, and after each operation that changes it: (words for it, the disk)."""
    disk = FragileDisk(files)
    yield "nothing", disk
    for operation, *arguments in log:
        if operation not in ("read", "names"):
            getattr(disk, operation)(*arguments)
            yield f"{operation}({', '.join(a for a in arguments if isinstance(a, str))})", disk


def contents(disk):
    return {name: disk.read(name) for name in disk.names()}


def at_the_end(files, log):
    *_, (_, disk) = replayed(files, log)
    return disk


class TestSaveWhole(Exercise):
    """A file that is there whole or not at all"""

    name = "save_whole"
    reference = "minitrain.reliability.plain:save_whole"
    hidden = HIDDEN

    SEALED = 'zlib.crc32(data).to_bytes(4, "little") + data'
    MISTAKES = (
        ((SEALED, "data"), "it has no checksum: four bytes of it, then the data"),
        (('"little"', '"big"'), 'the checksum is from the other end: to_bytes(4, "little")'),
    )

    def after(self, submission, cases, full=False):
        """(files, step, log, error, the bytes of the step at the end) of each."""
        calls = submission.run(probes.saved, [(*case, full) for case in cases])
        for (files, step, _), call in zip(cases, calls):
            yield (
                files,
                step,
                call["log"],
                call["error"],
                contents(at_the_end(files, call["log"])).get(name_of(step)),
            )

    @staticmethod
    def cases():
        """(files, step, data): nothing there; older steps; the rest of a kill; the step itself."""
        step = randint(10, 99)
        old = {name_of(step - 5): sealed(some_bytes(40)), name_of(step - 1): sealed(some_bytes(7))}
        rest = {f".{name_of(step)}.new": some_bytes(9), "notes.txt": b"keep me"}
        return [
            ({}, step, some_bytes(30)),
            (old, step + 3, some_bytes(64)),
            ({**old, **rest}, step, some_bytes(21)),
            (old, step - 1, some_bytes(11)),
            (old, 10**8 + step, b""),
        ]

    @check(points=2, title="the file has its name, its checksum and its bytes; others stay")
    def test_file(self, submission):
        cases = self.cases()
        for (files, step, data), (*_, log, error, _) in zip(cases, self.after(submission, cases)):
            expect.that(error is None, f"saving step {step} raised {error}")

            def there(f, given=(files, step, data)):
                (call,) = probes.saved(f, [(*given, False)])
                return shown(given[0], call["log"])

            told = hints(self.reference, self.MISTAKES, there)
            what = f"the files after save_whole of step {step}"
            want = there(variant(self.reference))
            expect.equal(shown(files, log), want, what=what, hints=told)

    @check(points=4, title="power cut after each operation: never a torn step, never one lost")
    def test_cuts(self, submission):
        for files, step, log, _, whole in self.after(submission, self.cases()):
            expect.that(whole is not None, f"after save_whole of step {step} it is not there")
            self.survives(files, step, log, whole)

    @staticmethod
    def survives(files, step, log, whole):
        """whole: the bytes of this step that no cut may tear."""
        before, done = {n: c for n, c in files.items() if n.startswith("step-")}, []
        for words, disk in replayed(files, log):
            done.append(words)
            for there in map(contents, disk.after_cut()):
                told = f"power cut after {', '.join(done)}: "
                for name in (name for name in there if name.startswith("step-")):
                    fine = [before.get(name), *([whole] if name == name_of(step) else [])]
                    expect.that(
                        there[name] in fine,
                        f"{told}{name} is there and not whole. Write under a name that does not begin "
                        "with step-, flush its bytes, and rename when they are on the disk",
                    )
                gone = ", ".join(name for name in before if name not in there)
                expect.that(
                    not gone,
                    f"{told}{gone} is gone. Nothing whole may go before the new one is there: rename "
                    "replaces at once",
                )

    @check(points=2, title="what has returned stays; a full disk is an error, and nothing is lost")
    def test_stays(self, submission):
        cases = self.cases()
        wholes = []
        for files, step, log, _, whole in self.after(submission, cases):
            wholes.append(whole)
            for left in map(contents, at_the_end(files, log).after_cut()):
                expect.that(
                    whole is not None and left.get(name_of(step)) == whole,
                    f"save_whole of step {step} had returned, then a power cut undid it: its bytes are "
                    "in memory until they are flushed, its name is in memory until disk.flush_names()",
                )
        full = self.after(submission, cases[1:4], full=True)
        for whole, (files, step, log, error, _) in zip(wholes[1:4], full):
            expect.that(
                error is not None,
                f"the disk was full and nobody heard of it, or nothing was written for step {step}: "
                "let the OSError pass, the run decides what to do",
            )
            self.survives(files, step, log, whole)


def shown(files, log):
    """The files at the end, without what a killed save had left there."""
    there = contents(at_the_end(files, log))
    return {n: list(c) for n, c in there.items() if not (n.startswith(".") and n in files)}


class TestNewestWhole(Exercise):
    """The newest that is whole"""

    name = "newest_whole"
    reference = "minitrain.reliability.plain:newest_whole"
    hidden = HIDDEN

    WHOLE = 'len(checksum) == 4 and zlib.crc32(data).to_bytes(4, "little") == checksum'
    MISTAKES = (
        (("return step, data", "return step, content"), "the data still has its checksum: the first four bytes are not the run's"),
        ((WHOLE, 'zlib.crc32(data) == int.from_bytes(checksum, "little")'), "a file of fewer than four bytes has no checksum, and is torn (the CRC-32 of nothing is 0, as of no bytes)"),
        ((WHOLE, "True"), "the newest is damaged: compare its checksum, and go on to the one before"),
        (("sorted(steps, reverse=True)", "sorted(steps, key=str, reverse=True)"), "read all digits behind `step-`, and compare numbers, not texts: nine are more than eight"),
    )  # fmt: skip

    def judge(self, submission, disks):
        """What is found on each disk, whose names come in any order, and what is read for it."""
        disks = [{name: files[name] for name in sample(list(files), len(files))} for files in disks]
        causes = {
            "IndexError": "a file may have fewer than four bytes",
            "ValueError": "other files lie there too: only names that begin with step- are checkpoints",
        }
        with expect.because(causes):
            found = submission.run(probes.found_newest, disks)
        for files, call in zip(disks, found):

            def outcome(f, files=files):
                return probes.found_newest(f, [files])[0]["out"]

            want, got = probes.found_newest(variant(self.reference), [files])[0], call["out"]
            told = hints(self.reference, self.MISTAKES, outcome)
            what = f"of {', '.join(files) or 'no files'}: (step, data)"
            if isinstance(got, (tuple, list)) and len(got) == 2:
                expect.that(type(got[0]) is int, f"the step is {got[0]!r}: it is a number, int(…)")
            expect.equal(got, want["out"], what=what, hints=told)
            changing = [entry[0] for entry in call["log"] if entry[0] != "read"]
            expect.that(not changing, f"it called {', '.join(changing)}: who looks changes nothing")
            yield {entry[1] for entry in call["log"]}, {entry[1] for entry in want["log"]}

    @check(points=3, title="damaged ones are passed over: cut off, changed, empty")
    def test_damaged(self, submission):
        base, place, content = randint(20, 90), randint(4, 33), sealed(some_bytes(30))
        whole = {name_of(base + n): sealed(some_bytes(20)) for n in (0, 3, 7)}
        changed = bytearray(content)
        changed[place] ^= 1 << randint(0, 7)
        damaged = (content[:17], bytes(changed), bytes(20), b"", content[:2], sealed(b""))
        disks = [whole, *({**whole, name_of(base + 9): bad} for bad in damaged)]
        disks.append({**whole, name_of(base + 9): b"", name_of(base + 8): bytes(changed)})
        list(self.judge(submission, disks))

    @check(points=1, title="by number, among other files; None where nothing is whole")
    def test_names(self, submission):
        data, step = sealed(some_bytes(12)), randint(3, 9)
        others = {
            f".{name_of(step + 4)}.new": sealed(b"half"),
            "notes.txt": b"seen",
            "damaged": data,
        }
        many = {name_of(10**8 + 1): data, name_of(10**8 - 1): sealed(b"older")}
        disks = [{**others, name_of(step): data}, many, {}, others, {name_of(step): b"torn"}]
        list(self.judge(submission, disks))

    @check(points=1, title="nothing older is read than must be")
    def test_reads(self, submission):
        base = randint(20, 90)
        files = {name_of(base + n): sealed(b"data") for n in range(6)}
        files[name_of(base + 5)] = b"torn"
        for read, needed in self.judge(submission, [files]):
            expect.that(
                read <= needed,
                f"{', '.join(sorted(read - needed))} was read too, older than the newest whole one: a "
                "checkpoint of terabytes takes minutes to read; begin with the newest and stop",
            )


# --- beside the training ---


class TestAsyncSaver(Exercise):
    """Written beside the training"""

    name = "AsyncSaver"
    reference = "minitrain.reliability.plain:AsyncSaver"
    hidden = HIDDEN

    MISTAKES = (
        ((".detach().clone()", ".detach()"), "the training changes its tensors in place while they are written. Write a copy, made before save returns"),
        (("        self.wait()\n", ""), "a second write was started while one was under way: on a slow disk they pile up. Wait for the one before"),
        (("step, copies)", "step, copies)\n        self.running.result()"), "the training waits for the disk: keep the handle, and wait for its result() at the next save"),
        (("running.result()", "pass"), "nobody waits for the write, nor hears of its error: ask the handle's result(), which raises it"),
        (("running, self.running = self.running, None", "running = self.running"), "an error is raised twice: drop the handle before its result() raises, so that the saver can be used again"),
    )  # fmt: skip
    THREADS = (
        "`start(function, *arguments)` is given for that: it runs the function beside the training"
    )

    def judge(self, submission, *script):
        """What is started, written and raised when, to the last bit -> the notes, and a copy's bytes."""
        tensors = {
            "weight": torch.randn(randint(3, 9), 7),
            "moment": torch.randn(12, dtype=torch.float64)[::2],
            "half": torch.randn(5).bfloat16(),
            "step": torch.tensor(randint(1, 99)),
        }
        script = [list(action) for action in script]
        with expect.because({("starts a thread", "_thread", "join thread"): self.THREADS}):
            notes = submission.run(probes.drilled, tensors, script)["notes"]

        def told(f):
            return events(probes.drilled(f, tensors, script)["notes"])

        got, want = events(notes), told(variant(self.reference))
        words = cause(got, self.reference, self.MISTAKES, told, 0.0)
        for number, (mine, right) in enumerate(zip_longest(got, want, fillvalue=("no more", {}))):
            before = ", ".join(name for name, _ in got[:number]) or "nothing"
            expect.that(
                mine[0] == right[0],
                f"after {before}: got '{mine[0]}', expected '{right[0]}'\n{words}",
            )
            known = [(mine[1], words)] if words else []
            expect.identical(mine[1], right[1], what=f"the tensors of '{mine[0]}'", hints=known)
        return notes, sum(t.numel() * t.element_size() for t in tensors.values())

    @check(points=2, title="each save is written beside the training, with its step and its values")
    def test_written(self, submission):
        first = randint(3, 50)
        self.judge(
            submission,
            ("save", first), ("run",), ("train",), ("save", first + 5), ("run",), ("save", first + 6), ("run",), ("wait",),
            ("others",), ("save", first + 7), ("run",), ("wait",),
        )  # fmt: skip

    @check(
        points=3, title="a copy: the training changes its tensors while the old ones are written"
    )
    def test_copy(self, submission):
        self.judge(
            submission,
            ("save", 4), ("train",), ("run",), ("save", 8), ("train",), ("train",), ("save", 12), ("train",), ("wait",),
        )  # fmt: skip

    @check(points=3, title="at most one in flight, and one copy in memory")
    def test_one(self, submission):
        notes, size = self.judge(
            submission, ("save", 1), ("train",), ("save", 2), ("train",), ("save", 3), ("wait",)
        )
        held = max(note.get("held", 0) for note in notes)
        expect.that(
            held < 1.5 * size,
            f"{held} bytes of copies were held at once, a copy has {size}: wait for the save before, "
            "then copy, and keep no older copy",
        )

    @check(points=2, title="an error of the writer is raised by the next save or wait, once")
    def test_errors(self, submission):
        step = randint(2, 60)
        self.judge(
            submission,
            ("full",), ("save", step), ("run",), ("train",), ("save", step + 1), ("save", step + 1), ("run",), ("full",),
            ("save", step + 2), ("wait",), ("save", step + 3), ("wait",),
        )  # fmt: skip

    @check(points=1, title="after wait all is written; with nothing to wait for it returns")
    def test_wait(self, submission):
        self.judge(submission, ("wait",), ("save", 7), ("train",), ("wait",), ("wait",))


def events(notes):
    """(words, tensors written) of each note."""
    found = []
    for note in notes:
        during = " ".join(str(part) for part in note["during"] or () if part is not None)
        words = f"{note['what']} in {during}" if during else note["what"]
        if note["what"] == "start":
            words += f", {note['pending']} under way"
        elif note["what"] == "write":
            words = f"step {note['step']} written {note['who']} in {during or 'the training'}"
            words += " with a graph: .detach() before .clone()" if note["graph"] else ""
        elif note["what"] == "done":
            words = f"{during} raises" if note["raised"] else f"{during} returns"
        found.append((words, note.get("values", {})))
    return found


# --- other numbers of ranks ---


class TestReshard(Exercise):
    """From n files to m ranks"""

    name = "reshard"
    reference = "minitrain.reliability.plain:reshard"
    hidden = HIDDEN

    MISTAKES = (
        (("size, wanted = -(-elements // old)", "size, wanted = elements // old"), "⌈elements/old⌉ rounds up: -(-elements // old) elements are in each file"),
        (("-(-elements // new)", "elements // new"), "⌈elements/new⌉ rounds up: -(-elements // new)"),
        (("torch.zeros(wanted,", "torch.zeros(max(0, min(wanted, elements - rank * wanted)),"), "all ranks' parts are equally long, zeros at the end"),
        (("min((rank + 1) * wanted, elements)", "(rank + 1) * wanted"), "padding was copied, which may be anything: behind the last element are zeros"),
        (("dtype=dtype", "dtype=torch.float32"), "the part has the dtype that is given, `dtype`"),
    )  # fmt: skip

    def judge(self, submission, shapes):
        """shapes: (elements, old, new, dtype) -> (what, reads, those of the reference)."""
        calls = []
        for elements, old, new, dtype in shapes:
            whole = torch.randint(1, 2**62, (elements,))  # more digits than a float has
            if dtype.is_floating_point:
                whole = (1 + 99 * torch.rand(elements, dtype=torch.float64)).to(dtype)
            padding = float("nan") if dtype.is_floating_point else 111
            calls.append((whole, old, new, padding))
        causes = {
            "the files are 0 to": "only files that hold some of this rank's elements are read: where "
            "its part ends with a file, nothing of the next one",
            "a file has": "a file has ⌈elements/old⌉ elements: start and stop count within it",
        }
        with expect.because(causes):
            found = iter(submission.run(probes.resharded, calls))
        for whole, old, new, padding in calls:
            right = probes.resharded(variant(self.reference), [(whole, old, new, padding)])
            for rank, want in enumerate(right):

                def part(f, call=(whole, old, new, padding), rank=rank):
                    return probes.resharded(f, [call])[rank]["out"]

                got, what = (
                    next(found),
                    f"{len(whole)} elements of {old} files, rank {rank} of {new}",
                )
                told = hints(self.reference, self.MISTAKES, part)
                expect.identical(got["out"], want["out"], what=what, hints=told)
                yield what, got["reads"], want["reads"]

    @check(points=3, title="any number of ranks from any other, every element in its place")
    def test_parts(self, submission):
        ranks = [(4, 2), (2, 4), (4, 3), (3, 5), (1, 6), (6, 1), (3, 3), (8, 7)]
        shapes = [(randint(1, 9) * 840, *pair, torch.float32) for pair in ranks]
        list(self.judge(submission, shapes))

    @check(
        points=3,
        title="lengths that no number of ranks divides, padding, ranks that get nothing; dtypes",
    )
    def test_padding(self, submission):
        shapes = [
            (randint(40, 60) * 12 + 5, 4, 3, torch.float32),
            (randint(40, 60) * 12 + 1, 3, 4, torch.bfloat16),
            (23, 4, 6, torch.float64),
            (5, 4, 4, torch.float32),  # the last old file is padding alone
            (3, 2, 8, torch.int64),
            (1, 1, 3, torch.float32),
            (0, 2, 3, torch.float32),
        ]
        list(self.judge(submission, shapes))

    @check(points=3, title="only this rank's elements are read, each file at most once")
    def test_reads(self, submission):
        shapes = [(601, 4, 3), (77, 3, 8), (1000, 2, 5), (29, 8, 2)]
        found = self.judge(submission, [(*shape, torch.float32) for shape in shapes])
        for what, reads, needed in found:
            expect.that(
                sorted(reads) == sorted(needed),
                f"{what} read (file, start, stop) {shortened(reads)}, expected {shortened(needed)}: of "
                "a file only from `start` to `stop`, in one piece, and no padding",
            )


def shortened(reads):
    more = f" and {len(reads) - 4} more" if len(reads) > 4 else ""
    return f"{', '.join(map(str, sorted(reads)[:4])) or 'nothing'}{more}"


# --- the state of a run ---

PARTS = {
    "weights": "the weights are not: run.model.state_dict()",
    "buffers": "the model's buffers are not (BatchNorm's means): run.model.state_dict() has them, its parameters alone do "
    "not",
    "optimizer": "the optimizer's state is not: Adam's two means and its count of steps, run.optimizer.state_dict()",
    "rates": "the learning rate is not: run.optimizer.state_dict() has it in its groups",
    "schedule": "the schedule is not: it counts steps of its own, run.schedule.state_dict()",
    "loader": "the place in the data is not: run.loader.state_dict()",
    "torch": "torch's generator is not, which dropout draws from",
    "numpy": "NumPy's generator is not, which the noise on the data is drawn from",
    "python": "Python's generator is not, which the loader shuffles with",
}
GENERATORS = (
    "of a generator keep its state (torch.get_rng_state()), not its seed, and let nothing draw from it "
    "after it was set: loading may, so set the generators last"
)
COPIES = (
    "state_dict() gives the run's own tensors and lists, which each step changes: keep copies "
    "(copy.deepcopy); load_state_dict may take what it is given as its own: hand it a copy"
)


def differing(got, want):
    """The parts of a run that are not those of another, to the last bit."""
    return [part for part in PARTS if difference(got[part], want[part], 0.0) is not None]


class TestSnapshot(Exercise):
    """All that a run is"""

    name = "Snapshot"
    reference = "minitrain.reliability.plain:Snapshot"
    hidden = HIDDEN

    def runs(self, submission, *names):
        """What `probes.snapped` found; the runs of these names are as at the snapshot."""
        seed, before, after = randint(1, 10**6), randint(13, 24), 8
        causes = {
            "size mismatch": "the state of one part was loaded into another",
            "expected CPUBoolType": "torch.set_rng_state wants what torch.get_rng_state gave",
        }
        with expect.because(causes):
            found = submission.run(probes.snapped, seed, before, after)
        for name in ("left", *names):
            for part in differing(found[name], found["at"]):
                words = GENERATORS if part in ("torch", "numpy", "python") else COPIES
                if name == "left":
                    words = "it was changed as the snapshot was taken. Only look: draw no number"
                told = f"after restore not all is as it was at the snapshot ({name}): {PARTS[part]}"
                raise CheckFailed(f"{told}; {words}")
        return found, seed, before, after

    @check(
        points=4,
        title="another run is this one, in every part, once the snapshot is restored into it",
    )
    def test_parts(self, submission):
        found, *_ = self.runs(submission)
        expect.that(
            found["unpicklable"] is None,
            f"the snapshot cannot be written to a disk ({found['unpicklable']}): keep what state_dict() gives and the "
            "generators' states, not the run or its parts",
        )
        self.runs(submission, "restored")

    @check(points=3, title="the snapshot is a copy: the run that goes on does not change it")
    def test_copy(self, submission):
        self.runs(submission, "restored late", "restored")

    @check(
        points=2, title="it can be restored twice: a run that goes on from it does not change it"
    )
    def test_twice(self, submission):
        self.runs(submission, "restored", "restored 3", "restored 4")

    @check(
        points=2,
        title="the next eight losses are those of a run that was never interrupted",
    )
    def test_losses(self, submission):
        found, seed, before, after = self.runs(submission)
        states = generator_states()
        try:
            want = probes.plain_run(seed, before + after)[before:]
        finally:
            restore_generators(states)
        for got, which in zip(found["losses"], ("the same run, set back", "another", "a third")):
            # Not bit for bit: ours were computed in another process, and a tensor that lies elsewhere
            # in memory may be summed in another order.
            off = [place for place, (a, b) in enumerate(zip(got, want), 1) if abs(a - b) > 1e-5 * b]
            words = f"{which}: losses {off} of 8 after restore differ from the uninterrupted run's"
            expect.that(not off, words)


# --- who is slow, what is out of line ---


def timed(compute, late=None):
    """compute (N, S) seconds -> (N, S, 3): a step ends for all when the slowest has come.

    Each rank has a clock of its own, one of them far ahead. `late`: {rank: seconds} that it leaves
    the collective after the others.
    """
    ranks, steps = compute.shape
    times, now = torch.empty(ranks, steps, 3, dtype=torch.float64), 0.0
    for step in range(steps):
        end = now + compute[:, step].max().item() + 0.01
        times[:, step, 0] = now
        times[:, step, 1] = now + compute[:, step]
        times[:, step, 2] = end
        for rank, seconds in (late or {}).items():
            times[rank, step, 2] += seconds
        now = end + max((late or {0: 0.0}).values())
    shift = 1e-3 * torch.rand(ranks, 1, 1, dtype=torch.float64)
    middling = compute.median(dim=1).values.argsort()[ranks // 2].item()
    shift[middling if middling not in (late or {}) else 0] += 5000
    return times + shift


class TestSlowRanks(Exercise):
    """Who is slow"""

    name = "slow_ranks"
    reference = "minitrain.reliability.plain:slow_ranks"
    hidden = HIDDEN

    OWN = "(times[:, :, 1] - times[:, :, 0]).median(dim=1).values"
    LIMIT = "torch.maximum(factor * middle, middle + 5 * deviation)"
    BOTH = "a slow rank is over both bounds, factor · median and median + 5 deviations"
    MISTAKES = (
        ((LIMIT, "middle + 5 * deviation"), BOTH),
        ((LIMIT, "factor * middle"), BOTH),
        ((OWN, "(times[:, :, 2] - times[:, :, 0]).median(dim=1).values"), "whole steps hold the waiting, too: compare what each computed before the collective"),
        ((OWN, "(times[:, :, 1] - times[:, :, 0]).mean(dim=1)"), "one long step (a collection of garbage) moves a mean: take each rank's median over the steps"),
        (("1.4826 * (compute - middle).abs().median()", "compute.std()"), "it goes by the standard deviation: a slow rank moves that itself, and hides in it. A deviation is 1.4826 times the median of |c - median|"),
    )  # fmt: skip

    def judge(self, submission, cases):
        """cases: (times (N, S, 3), factor or None)."""
        calls = [(times, *([] if factor is None else [factor])) for times, factor in cases]
        found = submission.run(probes.called, calls)
        expect.left_alone(found, calls, ["times"], own=False)
        outs = [call["out"] for call in found]
        for out in outs:
            is_list = isinstance(out, (list, tuple)) and all(isinstance(r, int) for r in out)
            expect.that(is_list, f"got {expect.show(out)}, expected a list of ranks, such as [2]")
        outs, right = list(map(sorted, outs)), variant(self.reference)
        words = cause(outs, self.reference, self.MISTAKES, lambda f: [f(*call) for call in calls])
        for out, call in zip(outs, calls):
            what = f"slow of {len(call[0])} ranks in {call[0].shape[1]} steps, factor {[*call, 1.1][1]}"
            expect.equal(out, right(*call), what=what, hints=[(out, words)] if words else [])

    def level(self, ranks, steps, noise=0.01):
        base = uniform(0.05, 0.4)
        return base * (1 + noise * (torch.rand(ranks, steps, dtype=torch.float64) - 0.5))

    def slowed(self, ranks, steps, slow, times, late=None):
        compute = self.level(ranks, steps)
        compute[slow] *= times
        return timed(compute, late), None

    @check(points=2, title="by what each computed before the collective, on its own clock")
    def test_compute(self, submission):
        compute = self.level(7, 9)  # the last but one leaves late, the last waits long
        compute[1] *= 1.6
        compute[6] *= 0.4
        late = {5: compute.max().item()}
        cases = [(timed(compute, late), None), self.slowed(40, 5, [3], 1.5)]
        for ranks, count in [(5, 1), (8, 2), (4, 1), (3, 1), (7, 3)]:
            cases.append(self.slowed(ranks, 9, sample(range(ranks), count), uniform(1.3, 3)))
        self.judge(submission, [*cases, (timed(self.level(6, 5)), None)])

    @check(points=2, title="a pause in one step is no straggler: the median of the steps")
    def test_pauses(self, submission):
        compute = self.level(6, 12)
        for rank in range(6):
            compute[rank, randint(0, 11)] *= uniform(1, 2)
        compute[1, 3] *= 30
        compute[4, 7] *= 20
        slow = self.level(8, 11)
        slow[5] *= 1.4
        slow[2, 6] *= 25
        middle = self.level(5, 9)  # in its middle step rank 3 pauses: its clock's median moves,
        middle[3, 4] *= 3  # its steps' does not
        cases = [(timed(each), None) for each in (compute, slow, middle)]
        self.judge(submission, [*cases, self.slowed(40, 5, [3], 1.5)])

    @check(points=2, title="over the median by the factor and by 5 deviations of the others")
    def test_limit(self, submission):
        spread = torch.linspace(1.0, 1.3, 9, dtype=torch.float64)[torch.randperm(9)]
        varied = 0.2 * spread[:, None].repeat(1, 7)  # 1.3 is 13% over the median, 2 deviations
        tight = self.level(7, 9, noise=0.001)
        tight[3] *= 1.05  # far over 5 deviations, and 5%
        strict = self.level(7, 9)
        strict[2] *= 1.3
        # |c - median| is 0, 1, 1, 2, 2, 3, 12 percent: its median 2, so 12 is 6 of them and 4 deviations
        noisy = torch.tensor([1.0, 0.99, 1.01, 0.98, 1.02, 0.97, 1.12], dtype=torch.float64)
        noisy = 0.3 * noisy[:, None].repeat(1, 5)
        passed = noisy.clone()
        passed[6] = 0.3 * 1.163  # 5.5 deviations
        plain = [(timed(each), None) for each in (varied, tight, noisy, passed)]
        alike = torch.tensor([0.0, 0.25, 0.5], dtype=torch.float64).repeat(4, 3, 1)  # at the limit
        given = [(timed(tight), 1.02), (timed(strict), 1.5), (alike, 1.0)]
        halves = [self.slowed(n, 9, sample(range(n), n // 2), 1.4) for n in (2, 4)]
        self.judge(submission, [*plain, *given, *halves, self.slowed(40, 5, [3], 1.5)])


class TestSpikeRule(Exercise):
    """A loss out of line"""

    name = "SpikeRule"
    reference = "minitrain.reliability.plain:SpikeRule"
    hidden = HIDDEN

    BACK = 'return "skip" if self.skipped else "back"'
    MISTAKES = (
        (("self.skipped, self.count = 0, self.count + 1", "self.count += 1"), "skipped steps are counted although good ones lie between: a step that is taken ends the row"),
        (("min(self.alpha, 1 - 1 / self.count)", "1 - 1 / self.count"), "that is the mean of all losses: of the first ones only, later it forgets, keep = min(alpha, 1 - 1/n)"),
        (("far > self.z", "abs(far) > self.z"), "a loss far *below* the mean is no spike: only what is over it"),
        (("self.skipped = (self", "self.count += 1\n            self.skipped = (self"), "n counts the losses that are *taken*: a skipped one, or NaN, neither ends the warm-up nor makes keep larger"),
        ((BACK, 'return "skip"'), "the `patience`-th of a row that is out of line goes back"),
    )  # fmt: skip

    def calm(self, steps, spikes=(), height=4.0):
        """A loss about 2 with noise of 0.05, and spikes of 40 deviations or more."""
        losses = [2.0 + 0.05 * math.sin(5.1 * step) + uniform(-0.02, 0.02) for step in range(steps)]
        for step in spikes:
            losses[step] += height + random()
        return losses

    def falling(self, steps, spikes=(), height=30.0):
        """A loss that falls from 6 to 2."""
        losses = self.calm(steps)
        for step in range(steps):
            losses[step] += 4 * math.exp(-step / 30) + (step in spikes) * height
        return losses

    def ask(self, submission, series, rows=True):
        """rows: whether those in a row are counted; else "skip" and "back" are the same."""

        def decided(rule):
            said = probes.decided(rule, series)
            return said if rows else [[w.replace("back", "skip") for w in own] for own in said]

        got = submission.run(probes.decided, series)
        for word in (word for own in got for word in own):
            words = f"got {expect.show(word)}: the answer is 'take', 'skip' or 'back'"
            expect.that(word in ("take", "skip", "back"), words)
        if not rows:
            got = [[w.replace("back", "skip") for w in own] for own in got]
        words = cause(got, self.reference, self.MISTAKES, decided)
        for own, want, (options, losses) in zip(got, decided(variant(self.reference)), series):
            place = next((i for i, pair in enumerate(zip(own, want)) if pair[0] != pair[1]), None)
            if place is not None:
                near = ", ".join(f"{loss:.3g}" for loss in losses[max(0, place - 3) : place + 1])
                told = f"step {place} (losses … {near}; {options or 'the defaults'}): got "
                raise CheckFailed(f"{told}'{own[place]}', expected '{want[place]}'\n{words}")

    @check(points=2, title="over the running mean by z deviations: skipped; what falls is not")
    def test_spikes(self, submission):
        deep = self.calm(90, (50, 80), height=2.5)
        deep[65] -= 1.5  # 30 deviations below
        steady = [2.0 + 1e-5 * random() for _ in range(40)]
        drift = [9.0 - 0.02 * step + 0.05 * math.sin(3.3 * step) for step in range(300)]
        drift[250] += 0.6  # over the last loss by far, and below the mean
        drift[280] += 8.0
        negative = [-loss for loss in steady]  # 0.001 over it is no spike: half a deviation
        series = [
            ({}, self.falling(90, (40, 55, 80))),
            ({}, deep),
            ({}, [*steady, 2.001, 2.008, 2.016, 2.5, 2.0]),
            ({}, [*30 * [1000.0], 1006.0]),  # 6 deviations, and not more
            ({}, [*negative, -1.999, -1.5, -2.0]),
            ({"warmup": 10, "z": 8.0}, self.falling(40, (14,))),
            ({}, drift),
            ({"alpha": 0.9}, drift),
        ]
        self.ask(submission, series, rows=False)

    @check(points=1, title="not finite is out of line at any time; the warm-up lets all else pass")
    def test_not_finite(self, submission):
        first, second = self.calm(60), self.calm(60)
        first[5], first[40], first[50] = math.nan, math.inf, -math.inf
        second[3] += 5
        second[0] = math.nan
        third = self.calm(60)
        third[2] = third[4] = third[6] = third[8] = third[10] = math.nan
        third[27] += 5  # the 23rd that is taken: still in the warm-up
        last, beyond = self.calm(60), self.calm(60)
        last[24] += 5
        beyond[25] += 5
        series = [({}, first), ({"warmup": 30}, second), *(({}, x) for x in (third, last, beyond))]
        self.ask(submission, series, rows=False)

    @check(points=1, title="what was skipped is not learnt")
    def test_not_learnt(self, submission):
        losses = self.calm(70, range(40, 70, 3))
        self.ask(submission, [({}, losses), ({"patience": 2}, losses)], rows=False)

    @check(points=2, title="after `patience` in a row the run goes back, and the count begins anew")
    def test_back(self, submission):
        row, parted = self.calm(80, range(40, 49)), self.calm(80, (40, 42, 44, 46, 50, 51))
        series = [({}, row), ({}, parted), ({"patience": 2}, row), ({"patience": 1}, parted)]
        nans, mixed = self.calm(60), self.calm(60, (40, 44))
        nans[3:8] = nans[50:55] = [math.nan, math.inf, math.nan, -math.inf, math.nan]
        mixed[41], mixed[42], mixed[45] = math.nan, math.inf, math.nan
        series += [({}, nans), ({}, mixed), ({"patience": 2}, mixed)]
        self.ask(submission, series)


# --- how often to save ---


def best(save, between):
    """Where exactly the least is lost, by halving: failures are exponential."""
    low, high = 1e-9 * between, between
    for _ in range(200):
        middle = (low + high) / 2
        share = middle / between
        is_short = share < 1 and (middle + save) / between + math.log1p(-share) > 0
        low, high = (middle, high) if is_short else (low, middle)
    return low


class TestBestInterval(Exercise):
    """How often to save"""

    name = "best_interval"
    reference = "minitrain.reliability.plain:best_interval"
    hidden = HIDDEN

    SERIES = " * (1 + x / 3 + x**2 / 9) - save_seconds"
    MISTAKES = (
        ((SERIES, ""), "that is Young's: it neglects that saves fail too, and is too long by about 2δ/3"),
        (("chip_hours * 3600", "chip_hours"), "M is in seconds, as the save is: 3600 to an hour"),
        (("/ failures / chips", "/ failures"), "so seldom one chip fails: of all of them one fails chips times as often"),
        ((" - save_seconds", ""), "that is from save to save: of training only, without δ"),
        (("if save_seconds >= 2 * between:", "if False:"), "that is the series, which holds for saves below 2 M: beyond it is M"),
    )  # fmt: skip

    def judge(self, submission, calls, tol):
        found = submission.run(probes.called, calls)
        for (save, chips, failures, chip_hours), call in zip(calls, found):
            given = save, chips, failures, chip_hours
            between = chip_hours * 3600 / failures / chips
            want = best(save, between) if save < 2 * between else between
            told = hints(self.reference, self.MISTAKES, lambda f, given=given: f(*given))
            rate = f"{chips:,} chips, {failures} failures in {chip_hours:g} chip-hours"
            what = f"{save:g} s a save, {rate}: seconds"
            expect.close(call["out"], want, tol=tol, what=what, hints=told)

    @check(points=3, title="the interval at which the least is lost, within half a percent")
    def test_best(self, submission):
        calls = []
        for ratio in (0.002, 0.01, 0.05, 0.2, uniform(0.005, 0.3)):
            failures, hours, chips = randint(3, 500), uniform(1e4, 1e7), 2 ** randint(6, 15)
            calls.append((ratio * hours * 3600 / failures / chips, chips, failures, hours))
        self.judge(submission, calls, tol=0.005)

    @check(
        points=1,
        title="no failures: never; saves longer than the time between failures: about that time",
    )
    def test_ends(self, submission):
        words = (
            "where nothing has failed there is no mean time between failures: return math.inf first"
        )
        with expect.because({"ZeroDivisionError": words}):
            never = submission.run(probes.called, [(20.0, 64, 0, 1e6)])[0]["out"]
        expect.equal(never, math.inf, what="nothing has failed")
        between, share = uniform(100, 900), uniform(1.1, 1.6)
        rate = (8, 10, between * 80 / 3600)
        self.judge(submission, [(share * between, *rate), (2.5 * between, *rate)], 0.07)


# --- experiments ---


class TestPowerCuts(Experiment):
    """The plug pulled everywhere"""

    name = "power_cuts"
    rests_on = ("save_whole", "newest_whole")

    @check(points=3, title="yours is never torn and never lost; the naive ones are")
    def test_cuts(self, table):
        rows = expect.rows(table, "way")
        yours, torn = rows["yours"], rows["renamed, not flushed"]["torn"]
        words = f"{yours['states']} states of the disk: cut after each operation"
        expect.that(yours["states"] >= 6, words)
        words = f"yours: {yours['torn']} torn, {yours['lost']} lost of {yours['states']}"
        expect.that(yours["torn"] == yours["lost"] == 0, words)
        expect.that(rows["in place"]["lost"] > 0, "a file that is overwritten in place can be lost")
        expect.that(torn > 0, "a name can be on the disk before its bytes")


class TestStall(Experiment):
    """How long training waits"""

    name = "stall"
    rests_on = ("AsyncSaver", "save_whole")

    def ways(self, table):
        rows = expect.rows(table, "way")
        return rows["waits"], rows["beside"]

    @check(points=2, title="the same bytes are written; a save that waits takes the disk's time")
    def test_bytes(self, table):
        waits, beside = self.ways(table)
        words = f"{waits['bytes']} and {beside['bytes']} bytes a save"
        expect.that(waits["bytes"] == beside["bytes"] > 0, words)
        least = waits["bytes"] / waits["bytes_per_second"]
        words = f"{waits['stall_seconds']:.3f} s for what the disk takes {least:.3f} s for"
        expect.that(waits["stall_seconds"] >= 0.99 * least, words)

    @check(points=2, title="beside the training the stall is less than half")
    def test_stall(self, table):
        waits, beside = self.ways(table)
        words = f"{waits['stall_seconds']:.3f} s against {beside['stall_seconds']:.3f} s"
        expect.that(beside["stall_seconds"] < 0.5 * waits["stall_seconds"], words)


class TestResumed(Experiment):
    """Killed, and gone on"""

    name = "resumed"
    rests_on = ("Snapshot", "AsyncSaver", "save_whole", "newest_whole")

    @check(points=3, title="every loss is that of the run that nobody killed, bit for bit")
    def test_losses(self, table):
        off = [row["step"] for row in table if row["loss"] != row["undisturbed"]]
        words = f"{len(off)} of {len(table)} losses differ, the first at step {off[:1]}"
        expect.that(not off, words)
        steps = {row["step"] for row in table}
        is_whole = steps == set(range(1, max(steps) + 1)) and len(steps) >= 10
        expect.that(is_whole, "every step from 1 on has a row")

    @check(
        points=2,
        title="a rank was killed, and the run went on from a checkpoint, not from the start",
    )
    def test_attempts(self, table):
        attempts = sorted({row["attempt"] for row in table})
        expect.that(len(attempts) >= 2, "there is one attempt only: nobody was killed")
        starts = [min(row["step"] for row in table if row["attempt"] == a) for a in attempts]
        expect.that(all(start > 1 for start in starts[1:]), f"the attempts began at steps {starts}")


class TestStragglers(Experiment):
    """Whole steps accuse nobody"""

    name = "stragglers"
    rests_on = ("slow_ranks",)

    @check(
        points=3, title="whole steps accuse nobody; compute time finds the slow rank, and no other"
    )
    def test_found(self, table):
        expect.that(len(table) >= 3, f"{len(table)} ranks: three or more")
        by_step = [row["rank"] for row in table if row["slow_by_step"]]
        by_compute = [row["rank"] for row in table if row["slow_by_compute"]]
        slowest = max(table, key=lambda row: row["compute_ms"])["rank"]
        expect.that(not by_step, f"by whole steps {by_step} are slow: all wait alike")
        words = f"by compute {by_compute} are slow, the slowest is {slowest}"
        expect.that(by_compute == [slowest], words)


class TestSpikes(Experiment):
    """Skipped, and gone back"""

    name = "spikes"
    rests_on = ("SpikeRule", "Snapshot")

    @check(
        points=3,
        title="with the rule the run ends where the undisturbed one does; without, above it",
    )
    def test_end(self, table):
        ends = {}
        for run in ("undisturbed", "guarded", "unguarded"):
            own = [row for row in table if row["run"] == run]
            losses = [row["loss"] for row in own if row["decision"] == "take"]
            expect.that(len(losses) >= 20, f"run '{run}' has {len(losses)} steps")
            ends[run] = statistics.mean(losses[-10:])
        told = ", ".join(f"{run} {end:.3f}" for run, end in ends.items())
        expect.that(ends["guarded"] < ends["unguarded"], f"the last ten losses: {told}")
        expect.that(ends["guarded"] < 1.25 * ends["undisturbed"], f"the last ten losses: {told}")
        words = [row["decision"] for row in table if row["run"] == "guarded"]
        is_used = "skip" in words and "back" in words
        expect.that(is_used, "the rule skipped nothing, or never went back")


class TestGoodput(Experiment):
    """Young, Daly and a million failures"""

    name = "goodput"
    rests_on = ("best_interval",)

    @check(
        points=3,
        title="your interval is within 3% of the simulated best, and loses no more than an hour's",
    )
    def test_interval(self, table):
        expect.that(len(table) >= 3, f"{len(table)} rows: three or more")
        for row in table:
            what = f"{row['chips']:,} chips, {row['save_seconds']:g} s a save: the interval"
            expect.close(row["interval"], row["simulated"], tol=0.03, what=what)
            expect.that(
                row["share"] >= row["share_hourly"],
                f"{row['share']:.4f} of the time trains, {row['share_hourly']:.4f} with a save an hour",
            )


class TestLlama3(Experiment):
    """54 days on 16,384 GPUs"""

    name = "llama3"
    rests_on = ("best_interval",)
    plan = "disk, best interval"

    @check(
        points=2, title="seconds add up; the published share of effective time within two points"
    )
    def test_share(self, table):
        rows = expect.rows(table, "plan")
        for row in table:
            parts = [row[part] for part in ("trained", "saving", "redone", "restarting", "waiting")]
            expect.that(abs(sum(parts) - 100) < 0.1, f"{row['plan']}: {sum(parts):.2f}% in all")
        share = rows[self.plan]["trained"]
        expect.that(88 <= share <= 92, f"{share:.1f}% train: over 90% was published")


class TestFlipped(Experiment):
    """A flipped bit"""

    name = "flipped"
    rests_on = ("Snapshot",)

    @check(
        points=2,
        title="a wrong weight is found by hashes, a wrong gradient by a step that is made twice",
    )
    def test_found(self, table):
        rows = expect.rows(table, "where")
        for where, seen in (
            ("weight", "by_hashes"),
            ("gradient", "by_repeating"),
            ("nowhere", ""),
        ):
            for way in ("by_hashes", "by_repeating"):
                want = [rows[where]["rank"]] if way == seen else []
                what = f"a bit flipped in: {where}; accused {way}"
                expect.equal(rows[where][way], want, what=what)
        weight = rows["weight"]
        what = "the step at which the weight's bit was found"
        expect.equal(weight["found_at_step"], weight["step"], what=what)


# --- questions ---


class TestLostSteps(Question):
    """Steps computed twice"""

    name = "lost_steps"
    rests_on = ("resumed",)

    @check(
        points=4,
        title="the steps that were computed more than once, counted once for each time too many",
    )
    def test_value(self, value, records):
        rows = expect.recorded(records, "resumed")
        want = len(rows) - len({row["step"] for row in rows})
        words = "those are all steps that were computed: take off those that were needed"
        expect.equal(value, want, what="steps", hints=[(len(rows), words)])


class TestWaitingShare(Question):
    """What one slow rank costs"""

    name = "waiting_share"
    rests_on = ("stragglers",)

    @check(points=4, title="the share of all ranks' time that is spent waiting, in percent")
    def test_value(self, value, records):
        rows = expect.recorded(records, "stragglers")
        step, compute = (sum(row[k] for row in rows) for k in ("step_ms", "compute_ms"))
        want = 100 * (1 - compute / step)
        told = [
            (want / 100, "that is a share: in percent it is 100 times as much"),
            (100 - want, "that is what is computed: the rest is waiting"),
        ]
        expect.close(value, want, tol=0.03, what="percent", hints=told)


class TestFourTimes(Question):
    """Four times the chips"""

    name = "four_times"
    rests_on = ("goodput",)

    @check(
        points=4, title="by how much the interval shrinks from 16,384 chips to 65,536, same save"
    )
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "goodput"), "chips", "save_seconds")
        few, many = (rows[chips, 15.0]["interval"] for chips in (16384, 65536))
        told = [
            (
                2.0,
                "that is √4, Young's: read it off your own intervals, Daly's are a little shorter",
            ),
            (many / few, "that is upside down: the longer interval over the shorter one"),
            (4.0, "the time between failures shrinks 4 times, the interval does not"),
        ]
        expect.close(value, few / many, tol=0.01, what="the factor", hints=told)


class TestCostliest(Question):
    """Where the time goes"""

    name = "costliest"
    rests_on = ("llama3",)

    @check(points=3, title="the largest part of the time that does not train")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "llama3"), "plan")
        row = rows[TestLlama3.plan]
        parts = {part: row[part] for part in ("saving", "redone", "restarting", "waiting")}
        expect.among(value, parts)
        words = f"got {value!r}: another part is larger in your row"
        expect.that(value == max(parts, key=parts.get), words)
