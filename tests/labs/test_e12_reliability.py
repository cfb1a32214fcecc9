"""The checks of lab e12: reliability, graded by what is left after a power cut, a kill, a resume."""

from __future__ import annotations

import math
import statistics
import zlib
from random import randint, random, sample, uniform

import torch

from minitrain.generators import generator_states, restore_generators
from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.variants import cause, variant
from minitrain.lab.grading.variants import hints as hints_of
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
    """The disk after each operation that changes it: (words for it, the disk)."""
    disk = FragileDisk(files)
    for operation, *arguments in log:
        if operation not in ("read", "names"):
            getattr(disk, operation)(*arguments)
            names = ", ".join(str(a) for a in arguments if isinstance(a, str))
            yield f"{operation}({names})", disk


def at_the_end(files, log):
    return [FragileDisk(files), *(disk for _, disk in replayed(files, log))][-1]


def contents(disk):
    return {name: disk.read(name) for name in disk.names()}


class TestSaveWhole(Exercise):
    """A file that is there whole or not at all"""

    name = "save_whole"
    reference = "minitrain.reliability.plain:save_whole"
    hidden = HIDDEN

    def cases(self):
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

    def after(self, submission, cases, full=False):
        """(files, step, log, error) of each."""
        got = submission.run(probes.saved, [(*case, full) for case in cases])
        return [(*case[:2], call["log"], call["error"]) for case, call in zip(cases, got)]

    @check(points=2, title="the file has its name, its checksum and its bytes; others stay")
    def test_file(self, submission):
        cases = self.cases()
        for (_, _, data), (files, step, log, error) in zip(cases, self.after(submission, cases)):
            expect.that(error is None, f"saving step {step} raised {error}")
            now, name = contents(at_the_end(files, log)), name_of(step)
            self.is_sealed(self.own(files, step, log), name, data, files)
            for other, content in files.items():
                is_kept = other in (name, *now) and (other == name or now[other] == content)
                words = f"{other} was changed, or is gone: it is not this step's"
                expect.that(is_kept or other.startswith("."), words)
            left = ", ".join(n for n in now if n not in files and n != name)
            words = f"{left} is left over: the temporary file gets its name by rename"
            expect.that(not left, words)

    @staticmethod
    def is_sealed(got, name, data, files):
        want = sealed(data)
        hints = [
            (files.get(name), "those are the bytes that it had before, and it is to be replaced"),
            *(
                (old, "those bytes lay in a file that a killed save had left: write what was given")
                for old in files.values()
            ),
            (data, "it has no checksum: four bytes of it, then the data"),
            (
                want[:4][::-1] + data,
                'the checksum is from the other end: to_bytes(4, "little")',
            ),
            (got, "the CRC-32 of the data as four bytes comes first, then the data"),
        ]
        expect.equal(got, want, what=f"the bytes of {name}", hints=hints)

    @check(points=4, title="power cut after each operation: never a torn step, never one lost")
    def test_cuts(self, submission):
        for files, step, log, _ in self.after(submission, self.cases()):
            self.survives(files, step, log, self.own(files, step, log))

    @staticmethod
    def own(files, step, log):
        """What the submission writes for this step, sealed as it must be (another check) or not."""
        there, name = contents(at_the_end(files, log)), name_of(step)
        words = f"after save_whole of step {step} there is no {name}: there is {', '.join(there)}"
        expect.that(name in there, words)
        return there[name]

    def survives(self, files, step, log, whole):
        """whole: the bytes of this step that no cut may tear."""
        name, done = name_of(step), []
        before = {n: c for n, c in files.items() if n.startswith("step-")}
        for words, disk in replayed(files, log):
            done.append(words)
            for there in map(contents, disk.after_cut()):
                fine = {n: (content,) for n, content in before.items()}
                fine[name] = (before.get(name), whole)
                steps = [n for n in there if n.startswith("step-")]
                torn = next((n for n in steps if there[n] not in fine.get(n, ())), None)
                told = f"power cut after {', '.join(done)}: "
                if torn:
                    why = self.why_torn(name, log)
                    raise CheckFailed(f"{told}{torn} is there and not whole. {why}")
                gone = ", ".join(n for n in before if n not in there)
                expect.that(
                    not gone,
                    f"{told}{gone} is gone. Nothing whole may go before the new one is there: rename "
                    "replaces at once",
                )

    @staticmethod
    def why_torn(name, log):
        kinds, written = [e[0] for e in log], [e[1] for e in log if e[0] == "write"]
        if name in written:
            return "It was written under its own name: write under another one, and rename when all bytes are on the disk"
        if any(other.startswith("step-") for other in written):
            return "The temporary name begins with step-, so a reader takes it for a checkpoint"
        if "flush" not in kinds:
            return "Its bytes were never flushed: a name may reach the disk before the bytes do"
        return "Bytes must be on the disk (flush) before the name is, and so not after the rename"

    @check(points=2, title="what has returned stays; a full disk is an error, and nothing is lost")
    def test_stays(self, submission):
        for files, step, log, _ in self.after(submission, self.cases()):
            whole = self.own(files, step, log)
            for left in map(contents, at_the_end(files, log).after_cut()):
                expect.that(
                    left.get(name_of(step)) == whole,
                    f"save_whole of step {step} had returned, then a power cut undid it: its bytes are "
                    "in memory until they are flushed, its name is in memory until disk.flush_names()",
                )
        cases = self.cases()[1:4]
        wholes = [self.own(*case[:3]) for case in self.after(submission, cases)]
        for (files, step, log, error), whole in zip(self.after(submission, cases, True), wholes):
            expect.that(
                error is not None,
                f"the disk was full and nobody heard of it, or nothing was written for step {step}: "
                "let the OSError pass, the run decides what to do",
            )
            self.survives(files, step, log, whole)


class TestNewestWhole(Exercise):
    """The newest that is whole"""

    name = "newest_whole"
    reference = "minitrain.reliability.plain:newest_whole"
    hidden = HIDDEN

    def found(self, submission, calls):
        calls = [{name: files[name] for name in sample(list(files), len(files))} for files in calls]
        with expect.because(
            {
                "IndexError": "a file may have fewer than four bytes",
                "ValueError": "other files lie there too: only names that begin with step- are checkpoints",
            }
        ):
            got = submission.run(probes.found_newest, calls)
        for call in got:
            changing = [entry[0] for entry in call["log"] if entry[0] != "read"]
            expect.that(not changing, f"it called {', '.join(changing)}: who looks changes nothing")
        return got

    def is_found(self, call, step, data, words):
        got = call["out"]
        is_pair = isinstance(got, (tuple, list)) and len(got) == 2
        told = f"got {expect.show(got)}, expected (step, data) of step {step}: {words}"
        expect.that(is_pair, told)
        expect.that(type(got[0]) is int, f"the step is {got[0]!r}: it is a number, int(…)")
        expect.that(got[0] == step, told)
        hint = "they still have their checksum: the first four bytes are not the run's"
        hints = [(sealed(data), hint)]
        expect.equal(got[1], data, what=f"step {step} is right, its data", hints=hints)

    @check(points=3, title="damaged ones are passed over: cut off, changed, empty")
    def test_damaged(self, submission):
        base, cases = randint(20, 90), []
        good = {base + n: some_bytes(20) for n in (0, 3, 7)}
        whole = {name_of(step): sealed(data) for step, data in good.items()}
        content, place = sealed(some_bytes(30)), randint(4, 33)
        flipped = bytes([content[place] ^ 1 << randint(0, 7)])
        changed = content[:place] + flipped + content[place + 1 :]
        words = (
            "the newest is damaged: compare its checksum, and go on to the one before; a file of fewer "
            "than four bytes has none, and is torn (the CRC-32 of nothing is 0, as of no bytes)"
        )
        for bad in (content[:17], changed, bytes(20), b"", content[:2]):
            cases.append({**whole, name_of(base + 9): bad})
        cases.append({**whole, name_of(base + 9): b"", name_of(base + 8): changed})
        empty = {**whole, name_of(base + 9): sealed(b"")}
        first, *got, last = self.found(submission, [whole, *cases, empty])
        of_three = (
            "three files that are whole: the first four bytes are the CRC-32 of the others, "
            'to_bytes(4, "little")'
        )
        self.is_found(first, base + 7, good[base + 7], of_three)
        for call in got:
            self.is_found(call, base + 7, good[base + 7], words)
        self.is_found(last, base + 9, b"", "it is whole, and has no bytes")

    @check(points=1, title="by number, among other files; None where nothing is whole")
    def test_names(self, submission):
        data, step = some_bytes(12), randint(3, 9)
        others = {
            f".{name_of(step + 4)}.new": sealed(b"half"),
            "notes.txt": b"seen",
            "damaged": sealed(b"x"),
        }
        many = {name_of(10**8 + 1): sealed(data), name_of(10**8 - 1): sealed(b"older")}
        none = [{}, others, {name_of(step): b"torn"}]
        calls = [{**others, name_of(step): sealed(data)}, many, *none]
        first, second, *got = self.found(submission, calls)
        words = "only names that begin with step- are checkpoints"
        self.is_found(first, step, data, words)
        words = "read all digits behind `step-`, and compare numbers, not texts: nine are more than eight"
        self.is_found(second, 10**8 + 1, data, words)
        for files, call in zip(none, got):
            expect.equal(call["out"], None, what=f"where {sorted(files)} lie and none is whole")

    @check(points=1, title="nothing older is read than must be")
    def test_reads(self, submission):
        base = randint(20, 90)
        files = {name_of(base + n): sealed(b"data") for n in range(6)}
        files[name_of(base + 5)] = b"torn"
        (call,) = self.found(submission, [files])
        self.is_found(call, base + 4, b"data", "the newest that is whole")
        read = {entry[1] for entry in call["log"]}
        more = sorted(read - {name_of(base + 5), name_of(base + 4)})
        expect.that(
            not more,
            f"{', '.join(more)} was read too, older than the newest whole one: a checkpoint of "
            "terabytes takes minutes to read; begin with the newest and stop",
        )


# --- beside the training ---


def trained(tensor, steps):
    """As the training leaves it after so many steps: rounded in each."""
    for _ in range(steps):
        tensor = tensor + 1
    return tensor


class TestAsyncSaver(Exercise):
    """Written beside the training"""

    name = "AsyncSaver"
    reference = "minitrain.reliability.plain:AsyncSaver"
    hidden = HIDDEN

    def drill(self, submission, *script):
        """The notes, and the tensors as they were at the beginning."""
        tensors = {
            "weight": torch.randn(randint(3, 9), 7),
            "moment": torch.randn(12, dtype=torch.float64)[::2],
            "half": torch.randn(5).bfloat16(),
            "step": torch.tensor(randint(1, 99)),
        }
        words = "`start(function, *arguments)` is given for that: it runs the function beside the training"
        with expect.because({("starts a thread", "_thread", "join thread"): words}):
            got = submission.run(probes.drilled, tensors, [list(action) for action in script])
        return got["notes"], tensors

    def of(self, notes, what):
        return [note for note in notes if note["what"] == what]

    def is_beside(self, notes):
        for note in self.of(notes, "write"):
            own = note["during"] == ["save", note["step"]]
            words = "Hand the writing to `start`" * (note["who"] == "foreground")
            expect.that(
                not own and note["who"] != "foreground",
                f"step {note['step']} was written by save or wait itself, or before its save returned: "
                "the training waits for the disk. "
                + (words or "Keep the handle, and wait for its result() at the next save"),
            )

    def is_written(self, notes, tensors, steps, last=None):
        """steps: (step, how often the training had moved the tensors by then); last: the tensors of
        the last save, where they are others than before."""
        found, numbers = self.of(notes, "write"), [step for step, _ in steps]
        expect.that(
            [note["step"] for note in found] == numbers,
            f"steps {[note['step'] for note in found]} were written, expected {numbers}: each save is "
            "written once, in order; it waits for the one before, and wait() for the last",
        )
        for note, (step, moved) in zip(found, steps):
            if last is not None and step == steps[-1][0]:
                tensors = last
            expect.that(
                set(note["values"]) == set(tensors),
                f"step {step} was written with {sorted(note['values'])}, expected {sorted(tensors)}: "
                "each save writes what it was given, and nothing of an earlier one",
            )
            words = f"step {step}: a tensor is still joined to autograd: .detach() before .clone()"
            expect.that(not note["graph"], words)
            for name, tensor in tensors.items():
                expect.identical(
                    note["values"][name],
                    trained(tensor, moved),
                    what=f"`{name}` as it was written for step {step}",
                    hints=[
                        (
                            trained(tensor, moved + more),
                            "those are the values after the next step: the training changes its tensors "
                            "in place while they are written. Write a copy, made before save returns",
                        )
                        for more in (1, 2, 3)
                    ],
                )

    @check(points=2, title="each save is written beside the training, with its step and its values")
    def test_written(self, submission):
        first = randint(3, 50)
        notes, tensors = self.drill(
            submission,
            ("save", first), ("run",), ("train",), ("save", first + 5), ("run",), ("save", first + 6), ("run",), ("wait",),
            ("others",), ("save", first + 7), ("run",), ("wait",),
        )  # fmt: skip
        self.is_beside(notes)
        steps = [(first, 0), (first + 5, 1), (first + 6, 1), (first + 7, 0)]
        last = probes.others_than({name: trained(tensor, 1) for name, tensor in tensors.items()})
        self.is_written(notes, tensors, steps, last=last)

    @check(
        points=3, title="a copy: the training changes its tensors while the old ones are written"
    )
    def test_copy(self, submission):
        notes, tensors = self.drill(
            submission,
            ("save", 4), ("train",), ("run",), ("save", 8), ("train",), ("train",), ("save", 12), ("train",), ("wait",),
        )  # fmt: skip
        self.is_beside(notes)
        self.is_written(notes, tensors, [(4, 0), (8, 1), (12, 3)])

    @check(points=3, title="at most one in flight, and one copy in memory")
    def test_one(self, submission):
        notes, tensors = self.drill(
            submission, ("save", 1), ("train",), ("save", 2), ("train",), ("save", 3), ("wait",)
        )
        self.is_beside(notes)
        for note in self.of(notes, "start"):
            expect.that(
                note["pending"] == 0,
                f"during {note['during']} a second write was started while one was under way: on a slow "
                "disk they pile up. Wait for the one before",
            )
        self.is_written(notes, tensors, [(1, 0), (2, 1), (3, 2)])
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        held = max(note["held"] for note in notes if "held" in note)
        expect.that(
            held < 1.5 * size,
            f"{held} bytes of copies were held at once, a copy has {size}: wait for the save before, "
            "then copy, and keep no older copy",
        )

    @check(points=2, title="an error of the writer is raised by the next save or wait, once")
    def test_errors(self, submission):
        step = randint(2, 60)
        notes, tensors = self.drill(
            submission,
            ("full",), ("save", step), ("run",), ("train",), ("save", step + 1), ("save", step + 1), ("run",), ("full",),
            ("save", step + 2), ("wait",), ("save", step + 3), ("wait",),
        )  # fmt: skip
        done = [note for note in self.of(notes, "done") if note["during"][0] in ("save", "wait")]
        want = [False, True, False, False, True, False, False]
        causes = [
            f"save({step}) has to wait for no write of its own",
            f"step {step} was never written, for lack of room, and the next save says so: ask the "
            "handle's result(), which raises the error",
            f"the error of step {step} was raised twice: drop the handle before its result() raises, "
            "so that the saver can be used again",
            f"save({step + 2}) has nothing to raise",
            f"step {step + 2} was never written: let the error of result() pass",
            f"save({step + 3}) raised an error that had been raised before",
            "wait() raised an error that had been raised before",
        ]
        for note, raises, words in zip(done, want, causes):
            told = f"{note['during']} raised {note['raised']}: {words}"
            expect.that((note["raised"] is not None) == raises, told)
        begun = [
            n["what"] for n in notes[: notes.index(done[1])] if n["during"] == ["save", step + 1]
        ]
        expect.that(
            not begun,
            f"save({step + 1}) raised the error of step {step}, and began a write of its own all the "
            "same: a save that raises does nothing else",
        )
        self.is_written(notes, tensors, [(step + 1, 1), (step + 3, 1)])

    @check(points=1, title="after wait all is written; with nothing to wait for it returns")
    def test_wait(self, submission):
        notes, tensors = self.drill(
            submission, ("wait",), ("save", 7), ("train",), ("wait",), ("wait",)
        )
        for note in self.of(notes, "done"):
            expect.that(note["raised"] is None, f"{note['during'][0]} raised {note['raised']}")
        self.is_beside(notes)
        writes = [note["during"] for note in self.of(notes, "write")]
        expect.that(writes == [["wait", None]], "wait() returned, and the save was not complete")
        self.is_written(notes, tensors, [(7, 0)])


# --- other numbers of ranks ---


def cut(whole, ranks, rank):
    """A rank's part of a flat tensor, zeros behind its end."""
    size = -(-len(whole) // ranks)
    part = whole[rank * size : (rank + 1) * size]
    return torch.cat([part, part.new_zeros(size - len(part))])


RESHARDED = [
    (("size, wanted = -(-elements // old)", "size, wanted = elements // old"), "⌈elements/old⌉ rounds up: -(-elements // old) elements are in each file"),
    (("-(-elements // new)", "elements // new"), "⌈elements/new⌉ rounds up: -(-elements // new)"),
]  # fmt: skip


class TestReshard(Exercise):
    """From n files to m ranks"""

    name = "reshard"
    reference = "minitrain.reliability.plain:reshard"
    hidden = HIDDEN

    def are_right(self, submission, cases):
        """cases: (elements, old, new, dtype) -> (case, rank, reads, words) of each new rank."""
        calls = []
        for elements, old, new, dtype in cases:
            whole = torch.randint(1, 2**62, (elements,))  # more digits than a float has
            if dtype.is_floating_point:
                whole = (1 + 99 * torch.rand(elements, dtype=torch.float64)).to(dtype)
            padding = float("nan") if dtype.is_floating_point else 111
            calls.append((whole, old, new, padding))
        causes = {
            "the files are 0 to": "only files that hold some of this rank's elements are read: where its part ends with a "
            "file, nothing of the next one",
            "a file has": "a file has ⌈elements/old⌉ elements: start and stop count within it",
            "shape mismatch": "a piece goes where its elements stand in this rank's part, stop - start of them; the last "
            "rank has fewer elements than places",
        }
        with expect.because(causes):
            found = iter(submission.run(probes.resharded, calls))
        for case, call in zip(cases, calls):
            for rank in range(case[2]):
                got = next(found)
                told = f"{case[0]} elements of {case[1]} files, rank {rank} of {case[2]}"
                self.is_right(call, rank, got["out"], told)
                yield case, rank, got["reads"], told

    def is_right(self, call, rank, out, told):
        whole, _, new, _ = call
        want, size = cut(whole, new, rank), -(-len(whole) // new)
        short = whole[rank * size : (rank + 1) * size]
        kinds = [kind for kind in (torch.float32, torch.float64) if kind != want.dtype]
        hints = [
            (short, "all ranks' parts are equally long, zeros at the end"),
            *(
                (want.to(kind).to(want.dtype), f"those were rounded to {kind} on the way: begin with a tensor of `dtype`")
                for kind in kinds
            ),
            (want.float(), "the part has the dtype that is given, `dtype`"),
            *hints_of(self.reference, RESHARDED, lambda wrong: probes.resharded(wrong, [call])[rank]["out"]),
        ]  # fmt: skip
        words = "a NaN was copied, or what is behind the last element is no 0: that is padding, and may be anything"
        is_kind = isinstance(out, torch.Tensor) and out.shape == want.shape
        if is_kind and out.dtype == want.dtype and torch.equal(out[: len(short)], short):
            hints = [(out, words)]
        expect.identical(out, want, what=told, hints=hints)

    @check(points=3, title="any number of ranks from any other, every element in its place")
    def test_parts(self, submission):
        ranks = [(4, 2), (2, 4), (4, 3), (3, 5), (1, 6), (6, 1), (3, 3), (8, 7)]
        cases = [(randint(1, 9) * 840, *pair, torch.float32) for pair in ranks]
        list(self.are_right(submission, cases))

    @check(
        points=3,
        title="lengths that no number of ranks divides, padding, ranks that get nothing; dtypes",
    )
    def test_padding(self, submission):
        cases = [
            (randint(40, 60) * 12 + 5, 4, 3, torch.float32),
            (randint(40, 60) * 12 + 1, 3, 4, torch.bfloat16),
            (23, 4, 6, torch.float64),
            (5, 4, 4, torch.float32),  # the last old file is padding alone
            (3, 2, 8, torch.int64),
            (1, 1, 3, torch.float32),
            (0, 2, 3, torch.float32),
        ]
        list(self.are_right(submission, cases))

    @check(points=3, title="only this rank's elements are read, each file at most once")
    def test_reads(self, submission):
        shapes = [(601, 4, 3), (77, 3, 8), (1000, 2, 5), (29, 8, 2)]
        cases = [(*shape, torch.float32) for shape in shapes]
        for (elements, old, new, _), rank, reads, told in self.are_right(submission, cases):
            first, last = (min(n * -(-elements // new), elements) for n in (rank, rank + 1))
            read = sum(stop - start for _, start, stop in reads)
            expect.that(
                read <= last - first,
                f"{read} elements were read, {last - first} are this rank's ({told}): of a file read "
                "only from `start` to `stop`, and no padding",
            )
            files, size = sorted(file for file, _, _ in reads), -(-elements // old)
            needed = [f for f in range(old) if max(first, f * size) < min(last, (f + 1) * size)]
            expect.that(
                files == needed,
                f"{len(files)} reads of files {files}, {needed} have this rank's elements, each in one "
                f"piece ({told})",
            )


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


OWN = "(times[:, :, 1] - times[:, :, 0]).median(dim=1).values"
LIMIT = "torch.maximum(factor * middle, middle + 5 * deviation)"
BOTH = "those ranks vary by nature, or are nearly alike: a slow rank is over both bounds, factor · median and median + 5 deviations"
LOWER = (
    "of an even number of ranks the median is `torch.median`'s, the lower of the two in the middle"
)
ACCUSED = [
    ((LIMIT, "middle + 5 * deviation"), BOTH),
    ((LIMIT, "factor * middle"), BOTH),
    ((LIMIT, "torch.minimum(factor * middle, middle + 5 * deviation)"), BOTH),
    (("1.4826 * (compute", "(compute"), "a deviation is 1.4826 times the median of |c - median|"),
    ((OWN, "times[:, :, 1].median(dim=1).values - times[:, :, 0].median(dim=1).values"), "two medians are of one step in the middle: take each step's difference first, then the median of those"),
    (("(compute > limit)", "((compute - middle).abs() > limit - middle)"), "a rank that is far *below* the median is fast: only what is over the limit"),
    ((OWN, "times[:, :, 1].median(dim=1).values"), "the ranks' clocks do not agree: take differences on one clock only"),
    ((OWN, "(times[:, :, 2] - times[:, :, 0]).median(dim=1).values"), "whole steps hold the waiting, too: compare what each computed before the collective"),
    ((OWN, "(times[:, :, 2] - times[:, :, 1]).median(dim=1).values"), "those wait, because they are fast or leave late: compare what each computed"),
    ((OWN, "(times[:, :, 1] - times[:, :, 0]).mean(dim=1)"), "one long step (a collection of garbage) moves a mean: take each rank's median over the steps"),
    (("middle = compute.median()", "middle = compute.quantile(0.5)", "(compute - middle).abs().median()", "(compute - middle).abs().quantile(0.5)"), LOWER),
    (("1.4826 * (compute - middle).abs().median()", "compute.std()"), "it goes by the standard deviation: a slow rank moves the standard deviation itself, and hides in it. Both are medians: the middle, and the deviation, 1.4826 times the median of |c - median|"),
]  # fmt: skip


class TestSlowRanks(Exercise):
    """Who is slow"""

    name = "slow_ranks"
    reference = "minitrain.reliability.plain:slow_ranks"
    hidden = HIDDEN

    def ask(self, submission, cases):
        """cases: (times (N, S, 3), factor or None, who is slow, words)."""
        calls = [(times, *([] if factor is None else [factor])) for times, factor, _, _ in cases]
        got = submission.run(probes.called, calls)
        expect.left_alone(got, calls, ["times"], own=False)
        outs = [call["out"] for call in got]
        for out in outs:
            is_list = isinstance(out, (list, tuple)) and all(isinstance(r, int) for r in out)
            expect.that(is_list, f"got {expect.show(out)}, expected a list of ranks, such as [2]")
        outs = list(map(sorted, outs))
        words = cause(outs, self.reference, ACCUSED, lambda wrong: [wrong(*call) for call in calls])
        for out, (times, _, want, why) in zip(outs, cases):
            what = f"slow of {len(times)} ranks in {times.shape[1]} steps ({why})"
            expect.equal(out, want, what=what, hints=[(out, words)] if words else [])

    def level(self, ranks, steps, noise=0.01):
        base = uniform(0.05, 0.4)
        return base * (1 + noise * (torch.rand(ranks, steps, dtype=torch.float64) - 0.5))

    def misleading(self):
        """Rank 1 is slow; the last but one leaves late, the last computes little and waits long."""
        compute = self.level(7, 9)
        compute[1] *= 1.6
        compute[6] *= 0.4
        late = {5: compute.max().item()}
        return timed(compute, late), None, [1], "its compute time is over the others'"

    def slowed(self, ranks, steps, slow, times, words):
        compute = self.level(ranks, steps)
        compute[slow] *= times
        return timed(compute), None, slow, words

    @check(points=2, title="by what each computed before the collective, on its own clock")
    def test_compute(self, submission):
        words = "their compute time, from the first column to the second, is over the others'"
        cases = [self.misleading(), self.slowed(40, 5, [3], 1.5, words)]
        for ranks, count in [(5, 1), (8, 2), (4, 1), (3, 1), (7, 3)]:
            slow = sorted(sample(range(ranks), count))
            cases.append(self.slowed(ranks, 9, slow, uniform(1.3, 3), words))
        cases.append((timed(self.level(6, 5)), None, [], "all are equally fast"))
        self.ask(submission, cases)

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
        # In the step that is the middle one of all, rank 3 pauses: its clock's median moves, its steps' does not.
        middle = self.level(5, 9)
        middle[3, 4] *= 3
        words = "a rank is slow where most of its steps are"
        cases = [(timed(case), None, out, words) for case, out in ((compute, []), (slow, [5]), (middle, []))]  # fmt: skip
        self.ask(submission, [*cases, self.slowed(40, 5, [3], 1.5, words)])

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
        halves = [(ranks, sorted(sample(range(ranks), ranks // 2))) for ranks in (2, 4)]
        cases = [
            (timed(varied), None, [], "its ranks vary by nature: 5 deviations are not passed"),
            (timed(tight), None, [], "5% over the median: the factor is 1.1"),
            (timed(tight), 1.02, [3], "the factor was given as 1.02"),
            (timed(strict), 1.5, [], "the factor was given as 1.5"),
            (timed(noisy), None, [], "a deviation is 1.4826 times the median of |c - median|"),
            (timed(passed), None, [6], "it is over both bounds"),
            *(self.slowed(ranks, 9, slow, 1.4, LOWER) for ranks, slow in halves),
            self.slowed(40, 5, [3], 1.5, "it is over both bounds"),
        ]
        self.ask(submission, cases)


BACK = 'return "skip" if self.skipped else "back"'
OUT = "if is_spike or not math.isfinite(loss):"
COUNTED = "self.skipped, self.count = 0, self.count + 1"
MISTAKES = [
    (("far = loss - self.mean", 'far, out = loss - self.mean, "take"',
      BACK, 'out = "skip" if self.skipped else "back"\n        if not math.isfinite(loss):\n            return out',
      COUNTED, 'self.skipped, self.count = self.skipped * (out != "take"), self.count + 1', 'return "take"', "return out"),
     "a spike was taken into mean and variance, so the next one looks normal: add what is taken only"),
    ((COUNTED, "self.count += 1"), "skipped steps are counted although good ones lie between: a step that is taken ends the row"),
    (("min(self.alpha, 1 - 1 / self.count)", "1 - 1 / self.count"), "that is the mean of all losses: of the first ones only, later it forgets, keep = min(alpha, 1 - 1/n)"),
    ((OUT, f'if not math.isfinite(loss) and self.count < self.warmup:\n            return "take"\n        {OUT}'),
     "a loss that is not a number passed in the warm-up: it is out of line at any time"),
    (("far > self.z", "abs(far) > self.z"), "a loss far *below* the mean is no spike: only what is over it"),
    (("self.skipped = (self", "self.count += 1\n            self.skipped = (self"),
     "n counts the losses that are *taken*: a skipped one, or NaN, neither ends the warm-up nor makes keep larger"),
    (("self.count >= self.warmup", "self.count > self.warmup"), "the warm-up is over once `warmup` losses have been taken: count >= warmup"),
    (("max(math.sqrt(self.variance), 1e-3 * abs(self.mean))", "math.sqrt(self.variance)"), "the deviation is at least a thousandth of the mean, however still the losses are"),
    (("keep * (self.variance + (1 - keep) * far**2)", "keep * self.variance + (1 - keep) * far**2"), "the variance is keep · (variance + (1 - keep) · far²): both are multiplied by keep"),
    (("min(self.alpha, 1 - 1 / self.count)", "self.alpha"), "that is with keep = alpha from the first loss on: of the first ones it is 1 - 1/n, keep = min(alpha, 1 - 1/n)"),
    (("abs(self.mean)", "self.mean"), "the least deviation is a thousandth of the mean's *absolute* value: a loss may be negative"),
    ((OUT, f'if not math.isfinite(loss):\n            return "skip"\n        {OUT}'),
     "a loss that is not finite counts in the row like any other that is out of line: the `patience`-th says back"),
    (("(self.skipped + 1) % self.patience", "self.skipped + 1", BACK, BACK.replace("self.skipped", "self.skipped < self.patience")),
     "after it has gone back the row begins anew: set the count of skipped steps to 0"),
    ((BACK, 'return "skip"'), "the `patience`-th of a row that is out of line goes back"),
]  # fmt: skip


class TestSpikeRule(Exercise):
    """A loss out of line"""

    name = "SpikeRule"
    reference = "minitrain.reliability.plain:SpikeRule"
    hidden = HIDDEN

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
        words = cause(got, self.reference, MISTAKES, decided)
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
        drift[280] += 8.0
        negative = [-loss for loss in steady]  # 0.001 over it is no spike: half a deviation
        series = [
            ({}, self.falling(90, (40, 55, 80))),
            ({}, deep),
            ({}, [*steady, 2.001, 2.5, 2.0]),
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


HOURS = "M is in seconds, as the save is: 3600 to an hour"
SERIES = " * (1 + x / 3 + x**2 / 9) - save_seconds"
INTERVALS = [
    ((SERIES, ""), "that is Young's: it neglects that saves fail too, and is too long by about 2δ/3"),
    ((SERIES, " - save_seconds"), "those are the first terms: the series goes on, (1 + x/3 + x²/9)"),
    (("chip_hours * 3600", "chip_hours"), HOURS),
    (("chip_hours * 3600", "chip_hours * 60"), HOURS),
    (("/ failures / chips", "/ failures * chips"), "more chips fail more often: divide by their number"),
    (("/ failures / chips", "/ failures"), "so seldom one chip fails: of all of them one fails chips times as often"),
    ((" - save_seconds", ""), "that is from save to save: of training only, without δ"),
    (("if save_seconds >= 2 * between:", "if False:"), "that is the series, which holds for saves below 2 M: beyond it is M"),
    (("* 3600 / failures", "* 3600"), "that is as if there had been one failure: divide by their number"),
]  # fmt: skip


class TestBestInterval(Exercise):
    """How often to save"""

    name = "best_interval"
    reference = "minitrain.reliability.plain:best_interval"
    hidden = HIDDEN

    def ask(self, submission, calls, tol, hints=()):
        got = submission.run(probes.called, calls)
        for call, one in zip(calls, got):
            save, chips, failures, chip_hours = call
            between = chip_hours * 3600 / failures / chips
            want = best(save, between) if save < 2 * between else between
            told = f"{save:g} s a save, {chips:,} chips, {failures} failures in {chip_hours:g} chip-hours: seconds"
            own = [
                *hints,
                *hints_of(self.reference, INTERVALS, lambda wrong, call=call: wrong(*call)),
            ]
            expect.close(one["out"], want, tol=tol, what=told, hints=own)

    @check(points=3, title="the interval at which the least is lost, within half a percent")
    def test_best(self, submission):
        calls = []
        for ratio in (0.002, 0.01, 0.05, 0.2, uniform(0.005, 0.3)):
            failures, hours, chips = randint(3, 500), uniform(1e4, 1e7), 2 ** randint(6, 15)
            calls.append((ratio * hours * 3600 / failures / chips, chips, failures, hours))
        self.ask(submission, calls, tol=0.005)

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
        words = (
            "that is the save's own length: training between saves may well be shorter than a save"
        )
        rate = (8, 10, between * 80 / 3600)
        self.ask(submission, [(share * between, *rate)], 0.07, [(share * between, words)])
        self.ask(submission, [(3 * between, *rate)], 0.07)


# --- experiments ---


class TestPowerCuts(Experiment):
    """The plug pulled everywhere"""

    name = "power_cuts"
    rests_on = ("save_whole", "newest_whole")

    @check(points=3, title="yours is never torn and never lost; the naive ones are")
    def test_cuts(self, table):
        rows = expect.rows(table, "way")
        yours = rows["yours"]
        expect.that(
            yours["states"] >= 6, f"{yours['states']} states of the disk: cut after each operation"
        )
        expect.that(
            yours["torn"] == yours["lost"] == 0,
            f"yours: {yours['torn']} torn, {yours['lost']} lost of {yours['states']}",
        )
        expect.that(rows["in place"]["lost"] > 0, "a file that is overwritten in place can be lost")
        expect.that(
            rows["renamed, not flushed"]["torn"] > 0, "a name can be on the disk before its bytes"
        )


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
        expect.that(
            waits["bytes"] == beside["bytes"] > 0,
            f"{waits['bytes']} and {beside['bytes']} bytes a save",
        )
        least = waits["bytes"] / waits["bytes_per_second"]
        expect.that(
            waits["stall_seconds"] >= 0.99 * least,
            f"{waits['stall_seconds']:.3f} s for what the disk takes {least:.3f} s for",
        )

    @check(points=2, title="beside the training the stall is less than half")
    def test_stall(self, table):
        waits, beside = self.ways(table)
        expect.that(
            beside["stall_seconds"] < 0.5 * waits["stall_seconds"],
            f"{waits['stall_seconds']:.3f} s against {beside['stall_seconds']:.3f} s",
        )


class TestResumed(Experiment):
    """Killed, and gone on"""

    name = "resumed"
    rests_on = ("Snapshot", "AsyncSaver", "save_whole", "newest_whole")

    @check(points=3, title="every loss is that of the run that nobody killed, bit for bit")
    def test_losses(self, table):
        off = [row for row in table if row["loss"] != row["undisturbed"]]
        expect.that(
            not off,
            f"{len(off)} of {len(table)} losses differ, the first at step {off[0]['step'] if off else ''}",
        )
        steps = {row["step"] for row in table}
        expect.that(
            steps == set(range(1, max(steps) + 1)) and len(steps) >= 10,
            "every step from 1 on has a row",
        )

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
        expect.that(
            by_compute == [slowest], f"by compute {by_compute} are slow, the slowest is {slowest}"
        )


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
            losses = [
                row["loss"] for row in table if row["run"] == run and row["decision"] == "take"
            ]
            expect.that(len(losses) >= 20, f"run '{run}' has {len(losses)} steps")
            ends[run] = statistics.mean(losses[-10:])
        told = ", ".join(f"{run} {end:.3f}" for run, end in ends.items())
        expect.that(ends["guarded"] < ends["unguarded"], f"the last ten losses: {told}")
        expect.that(ends["guarded"] < 1.25 * ends["undisturbed"], f"the last ten losses: {told}")
        words = [row["decision"] for row in table if row["run"] == "guarded"]
        expect.that(
            "skip" in words and "back" in words, "the rule skipped nothing, or never went back"
        )


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
            off = abs(row["interval"] / row["simulated"] - 1)
            expect.that(
                off < 0.03,
                f"{row['chips']:,} chips, {row['save_seconds']:g} s: {row['interval']:.1f} s against {row['simulated']:.1f} s",
            )
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
        for where in ("weight", "gradient", "nowhere"):
            row = rows[where]
            ways = {
                "by_hashes": [row["rank"]] if where == "weight" else [],
                "by_repeating": [row["rank"]] if where == "gradient" else [],
            }
            for way, want in ways.items():
                expect.that(
                    row[way] == want,
                    f"a bit flipped in: {where}; {way} accused {row[way]}, not {want}",
                )
        weight = rows["weight"]
        expect.that(
            weight["found_at_step"] == weight["step"],
            f"flipped at step {weight['step']}, found at step {weight['found_at_step']}",
        )


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
        expect.equal(
            value,
            want,
            what="steps",
            hints=[
                (
                    len(rows),
                    "those are all steps that were computed: take off those that were needed",
                )
            ],
        )


class TestWaitingShare(Question):
    """What one slow rank costs"""

    name = "waiting_share"
    rests_on = ("stragglers",)

    @check(points=4, title="the share of all ranks' time that is spent waiting, in percent")
    def test_value(self, value, records):
        rows = expect.recorded(records, "stragglers")
        step, compute = (sum(row[k] for row in rows) for k in ("step_ms", "compute_ms"))
        want = 100 * (1 - compute / step)
        expect.close(
            value,
            want,
            tol=0.03,
            what="percent",
            hints=[
                (want / 100, "that is a share: in percent it is 100 times as much"),
                (100 - want, "that is what is computed: the rest is waiting"),
            ],
        )


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
        expect.close(
            value,
            few / many,
            tol=0.01,
            what="the factor",
            hints=[
                (
                    2.0,
                    "that is √4, Young's: read it off your own intervals, Daly's are a little shorter",
                ),
                (many / few, "that is upside down: the longer interval over the shorter one"),
                (4.0, "the time between failures shrinks 4 times, the interval does not"),
            ],
        )


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
        expect.that(
            value == max(parts, key=parts.get), f"got {value!r}: another part is larger in your row"
        )
