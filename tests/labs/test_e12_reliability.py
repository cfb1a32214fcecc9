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
        "parameters": 500_000, "saves": 2, "spike_steps": 180, "corpus": 100_000,
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


def is_step(name):
    return name.startswith("step-") and name[5:].isdigit()


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
        """(case, its log) of each."""
        got = submission.run(probes.saved, [(*case, full) for case in cases])
        return [(case, call["log"], call["error"]) for case, call in zip(cases, got)]

    @check(points=2, title="the file has its name, its checksum and its bytes; others stay")
    def test_file(self, submission):
        for (files, step, data), log, error in self.after(submission, self.cases()):
            expect.that(error is None, f"saving step {step} raised {error}")
            disk = at_the_end(files, log)
            now, name = contents(disk), name_of(step)
            expect.that(
                name in now,
                f"after save_whole of step {step} there is no {name}: there is {', '.join(now) or 'nothing'}",
            )
            self.is_sealed(now[name], name, data, files)
            for other, content in files.items():
                if other != name and other in disk.names():
                    expect.that(
                        now[other] == content or other.startswith("."),
                        f"{other} was changed: it is not this step's",
                    )
            lost = [n for n in files if n not in now and not n.startswith(".")]
            expect.that(not lost, f"{', '.join(lost)} is gone: older steps stay")
            left = [n for n in now if n not in files and n != name]
            expect.that(
                not left,
                f"{', '.join(left)} is left over: the temporary file gets its name by rename",
            )

    @staticmethod
    def is_sealed(got, name, data, files):
        want = sealed(data)
        why = "the CRC-32 of the data as four bytes, then the data"
        if got == files.get(name):
            why = "those are the bytes that it had before, and it is to be replaced"
        elif got in files.values():
            why = "those bytes lay in a file that a killed save had left: write what was given now, in its place"
        elif got == data:
            why = "it has no checksum: four bytes of it, then the data"
        elif got == want[:4][::-1] + data:
            why = 'the checksum is from the other end: to_bytes(4, "little")'
        elif got == data + want[:4]:
            why = "the checksum comes first, then the data"
        expect.that(got == want, f"{name} holds {got[:12]!r}…, expected {want[:12]!r}…: {why}")

    @check(points=4, title="power cut after each operation: never a torn step, never one lost")
    def test_cuts(self, submission):
        for (files, step, _), log, _ in self.after(submission, self.cases()):
            self.survives(files, step, log, self.own(files, step, log))

    @staticmethod
    def own(files, step, log):
        """What the submission writes for this step, sealed as it must be (another check) or not."""
        there, name = contents(at_the_end(files, log)), name_of(step)
        expect.that(name in there, f"after save_whole of step {step} there is no {name}")
        return there[name]

    def survives(self, files, step, log, whole):
        """whole: the bytes of this step that no cut may tear."""
        name, done = name_of(step), []
        before = {n: c for n, c in files.items() if n.startswith("step-")}
        for words, disk in replayed(files, log):
            done.append(words)
            for left in disk.after_cut():
                there = contents(left)
                fine = {n: (content,) for n, content in before.items()}
                fine[name] = (before.get(name), whole)
                torn = [
                    n for n in there if n.startswith("step-") and there[n] not in fine.get(n, ())
                ]
                if torn:
                    raise CheckFailed(self.why_torn(name, log, done, torn))
                gone = [n for n in before if n not in there]
                expect.that(
                    not gone,
                    f"power cut after {', '.join(done)}: {', '.join(gone)} is gone. Nothing whole may go before the new "
                    "one is there: rename replaces at once",
                )

    @staticmethod
    def why_torn(name, log, done, torn):
        where = f"power cut after {', '.join(done)}: {torn[0]} is there and not whole. "
        if torn[0] != name and is_step(torn[0]):
            return where + "That is another step's file, which stays as it is"
        if ["write", name] in [entry[:2] for entry in log]:
            return where + (
                "It was written under its own name: write under another one, and rename when all bytes are on the disk"
            )
        starts = [entry[1] for entry in log if entry[0] == "write" and entry[1].startswith("step-")]
        if starts:
            return (
                where
                + "The temporary name begins with step-, so a reader takes it for a checkpoint: begin it otherwise"
            )
        kinds = [entry[0] for entry in log]
        if "flush" not in kinds:
            return (
                where
                + "Its bytes were never flushed: a name may reach the disk before the bytes do"
            )
        if kinds.index("flush") > kinds.index("rename"):
            return (
                where
                + "It was flushed after the rename: the name may reach the disk before the bytes; flush first"
            )
        return where + "Bytes must be on the disk (flush) before the name is (rename)"

    @check(points=2, title="what has returned stays; a full disk is an error, and nothing is lost")
    def test_stays(self, submission):
        for (files, step, _), log, _ in self.after(submission, self.cases()):
            disk, whole, name = at_the_end(files, log), self.own(files, step, log), name_of(step)
            for left in map(contents, disk.after_cut()):
                words = "its name is in memory until disk.flush_names()"
                if left.get(name) not in (None, files.get(name)):
                    words = "its bytes are in memory until they are flushed, too"
                expect.that(
                    left.get(name) == whole,
                    f"save_whole of step {step} had returned, then a power cut undid it: {words}",
                )
        cases = self.cases()[1:4]
        wholes = [self.own(*case[:2], log) for case, log, _ in self.after(submission, cases)]
        found = self.after(submission, cases, full=True)
        for ((files, step, _), log, error), whole in zip(found, wholes):
            expect.that(
                error is not None or "write" in [entry[0] for entry in log],
                f"save_whole of step {step} wrote nothing: what lay on the disk before are not this step's bytes",
            )
            expect.that(
                error is not None,
                "the disk was full and nobody heard of it: let the OSError pass, the run decides what to do",
            )
            self.survives(files, step, log, whole)


class TestNewestWhole(Exercise):
    """The newest that is whole"""

    name = "newest_whole"
    reference = "minitrain.reliability.plain:newest_whole"
    hidden = HIDDEN

    def shuffled(self, files):
        return {name: files[name] for name in sample(list(files), len(files))}

    def found(self, submission, calls):
        calls = [self.shuffled(files) for files in calls]
        got = submission.run(probes.found_newest, calls)
        for call in got:
            changing = [entry[0] for entry in call["log"] if entry[0] != "read"]
            expect.that(not changing, f"it called {', '.join(changing)}: who looks changes nothing")
        return got

    def is_found(self, got, step, data, words):
        is_pair = isinstance(got, (tuple, list)) and len(got) == 2
        expect.that(got is not None, f"got None, and step {step} is whole")
        expect.that(
            is_pair, f"got {expect.show(got)}, expected (step, data) of step {step}: {words}"
        )
        expect.that(
            not isinstance(got[0], str),
            f"the step is the text {got[0]!r}: it is a number, int(…)",
        )
        expect.that(got[0] == step, f"got step {got[0]}, expected {step}: {words}")
        expect.that(
            got[1] != sealed(data),
            "the data still have their checksum: the first four bytes are not the run's",
        )
        expect.that(
            got[1] == data,
            f"step {step} is right, its data are {got[1]!r:.60}, expected {data!r:.60}",
        )

    @check(points=3, title="damaged ones are passed over: cut off, changed, empty")
    def test_damaged(self, submission):
        base, cases = randint(20, 90), []
        good = {base + n: some_bytes(20) for n in (0, 3, 7)}
        whole = {name_of(step): sealed(data) for step, data in good.items()}
        content = sealed(some_bytes(30))
        place = randint(4, 33)
        changed = (
            content[:place] + bytes([content[place] ^ 1 << randint(0, 7)]) + content[place + 1 :]
        )
        shared = "the newest is damaged: compare its checksum, and go on to the one before"
        short = (
            "a file of fewer than four bytes has no checksum and is torn, whatever it compares to (the CRC-32 of "
            "nothing is 0, and so is the number of no bytes)"
        )
        for bad in (content[:17], changed, bytes(20), b"", content[:2]):
            words = short if len(bad) < 4 else shared
            cases.append(({**whole, name_of(base + 9): bad}, base + 7, words))
        two = {**whole, name_of(base + 9): b"", name_of(base + 8): changed}
        cases.append((two, base + 7, "the two newest are damaged"))
        empty = {**whole, name_of(base + 9): sealed(b"")}
        with expect.because({"IndexError": "a file may have fewer than four bytes"}):
            files = [whole, *(files for files, _, _ in cases), empty]
            first, *got = self.found(submission, files)
        expect.that(
            first["out"] is not None,
            "got None of three files that are whole: the first four bytes are the CRC-32 of the others, "
            'to_bytes(4, "little")',
        )
        self.is_found(
            first["out"], base + 7, good[base + 7], "three files are whole, the newest is asked for"
        )
        for (_, step, words), call in zip(cases, got):
            expect.that(call["out"] is not None, f"got None, expected step {step}: {words}")
            self.is_found(call["out"], step, good[step], words)
        self.is_found(got[-1]["out"], base + 9, b"", "it is whole, and has no bytes")

    @check(points=1, title="by number, among other files; None where nothing is whole")
    def test_names(self, submission):
        data, step = some_bytes(12), randint(3, 9)
        others = {
            f".{name_of(step + 4)}.new": sealed(b"half"),
            "notes.txt": b"seen",
            "damaged": sealed(b"x"),
        }
        many = {name_of(10**8 + 1): sealed(data), name_of(10**8 - 1): sealed(b"older")}
        calls = [
            {**others, name_of(step): sealed(data)},
            many,
            {},
            others,
            {name_of(step): b"torn"},
        ]
        causes = {
            "ValueError": "other files lie there too: only names that begin with step- are checkpoints"
        }
        with expect.because(causes):
            got = [call["out"] for call in self.found(submission, calls)]
        self.is_found(got[0], step, data, "only names that begin with step- are checkpoints")
        self.is_found(
            got[1],
            10**8 + 1,
            data,
            "a step of nine digits is later than one of eight: read all digits behind `step-`, and compare numbers, "
            "not texts",
        )
        for out, words in zip(
            got[2:], ("an empty folder", "a folder without steps", "a single torn file")
        ):
            expect.that(out is None, f"for {words} got {expect.show(out)}, expected None")

    @check(points=1, title="nothing older is read than must be")
    def test_reads(self, submission):
        base = randint(20, 90)
        files = {name_of(base + n): sealed(some_bytes(9)) for n in range(6)}
        files[name_of(base + 5)] = b"torn"
        (call,) = self.found(submission, [files])
        is_pair = isinstance(call["out"], (tuple, list)) and len(call["out"]) == 2
        expect.that(
            is_pair and call["out"][0] == base + 4,
            f"as above: got {expect.show(call['out'])}, and the newest that is whole is step {base + 4}",
        )
        read = {entry[1] for entry in call["log"]}
        more = sorted(read - {name_of(base + 5), name_of(base + 4)})
        expect.that(
            not more,
            f"{', '.join(more)} was read too, older than the newest whole one: a checkpoint of terabytes takes minutes to "
            "read; begin with the newest and stop",
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

    def drawn(self):
        return {
            "weight": torch.randn(randint(3, 9), 7),
            "moment": torch.randn(12, dtype=torch.float64)[::2],
            "half": torch.randn(5).bfloat16(),
            "step": torch.tensor(randint(1, 99)),
        }

    def drill(self, submission, *script):
        """The notes, and the tensors as they were at the beginning."""
        tensors = self.drawn()
        causes = {
            "starts a thread": "`start(function, *arguments)` is given for that: it runs the function beside the training",
            ("_thread", "join thread"): "`start(function, *arguments)` is given for that",
        }
        with expect.because(causes):
            got = submission.run(probes.drilled, tensors, [list(action) for action in script])
        return got["notes"], tensors

    def of(self, notes, what):
        return [note for note in notes if note["what"] == what]

    def is_beside(self, notes):
        for note in self.of(notes, "write"):
            during = note["during"]
            own = during is not None and during[0] == "save" and during[1] == note["step"]
            words = f"step {note['step']} was written before save({note['step']}) returned"
            expect.that(
                not (own and note["who"] == "foreground"),
                f"{words}: the training waits for the disk. Hand the writing to `start`",
            )
            expect.that(
                not own,
                f"{words}: `result()` waits for the whole write. Keep the handle, and wait at the next save",
            )
            expect.that(
                note["who"] != "foreground",
                f"step {note['step']} was written by save or wait itself: let `start` run it",
            )

    def is_written(self, notes, tensors, steps, briefly=False, last=None):
        """steps: (step, how often the training had moved the tensors by then).

        briefly: values are what another check is about; last: the tensors of the last save, where
        they are others than before.
        """
        found = self.of(notes, "write")
        got = [note["step"] for note in found]
        expect.that(
            got == [step for step, _ in steps],
            f"steps {got} were written, expected {[step for step, _ in steps]}: each save is written once, in order; it waits for the one "
            "before, and wait() for the last",
        )
        for note, (step, moved) in zip(found, steps):
            earlier = tensors
            if last is not None and step == steps[-1][0]:
                tensors = last
            of_before = set(note["values"]) - set(tensors)
            expect.that(
                set(note["values"]) == set(tensors),
                f"step {step} was written with {sorted(note['values'])}, expected {sorted(tensors)}"
                + ": each save writes what it was given, and nothing of an earlier one"
                * (of_before != set() and of_before <= set(earlier)),
            )
            if briefly:
                wants = {name: trained(tensor, moved) for name, tensor in tensors.items()}
                expect.that(
                    not note["graph"] and expect.difference(note["values"], wants, 0.0) is None,
                    f"as above: what was written for step {step} is not a detached copy of the tensors at save({step})",
                )
                continue
            expect.that(
                not note["graph"],
                f"step {step}: a tensor is still joined to autograd: .detach() before .clone()",
            )
            for name, tensor in tensors.items():
                expect.identical(
                    note["values"][name],
                    trained(tensor, moved),
                    what=f"`{name}` as it was written for step {step}",
                    hints=[
                        *self.later(tensor, moved),
                        *(
                            (note["values"][name], words)
                            for words in self.of_before(note, name, tensor)
                        ),
                    ],
                )

    @staticmethod
    def of_before(note, name, tensor):
        """Words where the dtype is another than that of this save's tensor."""
        if note["values"][name].dtype != tensor.dtype:
            yield "each save writes its own tensors, in the dtype that they have then"

    def later(self, tensor, moved):
        words = (
            "those are the values after the next step: the training changes its tensors in place while they are written. "
            "Write a copy, made before save returns"
        )
        for more in (1, 2, 3):
            yield trained(tensor, moved + more), words

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
                f"during {note['during'][0]}({note['during'][1]}) a second write was started while one was under way: on a "
                "slow disk they pile up. Wait for the one before",
            )
        self.is_written(notes, tensors, [(1, 0), (2, 1), (3, 2)], briefly=True)
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
        done = self.of(notes, "done")
        own, following, again = (note for note in done if note["during"][1] in (step, step + 1))
        failed, waited, _, last = [n for n in done if n["during"][0] in ("save", "wait")][-4:]
        expect.that(
            own["raised"] is None,
            f"save({step}) raised its own error: it had to wait for the write",
        )
        expect.that(
            following["raised"] is not None and f"step {step}" in following["raised"],
            f"step {step} was never written, for lack of room, and save({step + 1}) said nothing: ask the handle's "
            "result(), which raises the error",
        )
        until = notes[: notes.index(following)]
        begun = [note["what"] for note in until if note["during"] == ["save", step + 1]]
        expect.that(
            not begun,
            f"save({step + 1}) raised the error of step {step}, and began a write of its own all the same: a save that raises "
            "does nothing else",
        )
        expect.that(
            again["raised"] is None,
            f"the error of step {step} was raised twice: drop the handle before its result() raises, so that the saver can "
            "be used again",
        )
        expect.that(failed["raised"] is None, f"save({step + 2}) raised {failed['raised']}")
        expect.that(
            waited["raised"] is not None,
            f"step {step + 2} was never written, and wait() said nothing: let the error of result() pass",
        )
        expect.that(last["raised"] is None, "wait() raised an error that had been raised before")
        self.is_written(notes, tensors, [(step + 1, 1), (step + 3, 1)], briefly=True)

    @check(points=1, title="after wait all is written; with nothing to wait for it returns")
    def test_wait(self, submission):
        notes, tensors = self.drill(
            submission, ("wait",), ("save", 7), ("train",), ("wait",), ("wait",)
        )
        for note in self.of(notes, "done"):
            expect.that(note["raised"] is None, f"{note['during'][0]} raised {note['raised']}")
        writes = [note["during"] for note in self.of(notes, "write")]
        expect.that(writes != [["save", 7]], "as above: step 7 was written before save(7) returned")
        expect.that(writes == [["wait", None]], "wait() returned, and the save was not complete")
        self.is_written(notes, tensors, [(7, 0)], briefly=True)


# --- other numbers of ranks ---


def cut(whole, ranks, rank):
    """A rank's part of a flat tensor, zeros behind its end."""
    size = -(-len(whole) // ranks)
    part = whole[rank * size : (rank + 1) * size]
    return torch.cat([part, part.new_zeros(size - len(part))])


class TestReshard(Exercise):
    """From n files to m ranks"""

    name = "reshard"
    reference = "minitrain.reliability.plain:reshard"
    hidden = HIDDEN

    def parts(self, submission, cases):
        """cases: (elements, old, new, dtype) -> (case, whole, rank, out, reads) of each new rank."""
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
        for case, (whole, _, new, _) in zip(cases, calls):
            for rank in range(new):
                yield case, whole, rank, next(found)

    def is_right(self, case, whole, rank, got):
        elements, old, new, _ = case
        told = f"{elements} elements of {old} files, rank {rank} of {new}"
        out, want = got["out"], cut(whole, new, rank)
        expect.that(
            isinstance(out, torch.Tensor), f"got {expect.show(out)}, expected a tensor ({told})"
        )
        expect.that(
            not (out.is_floating_point() and out.isnan().any()),
            f"a NaN was copied ({told}): what lies behind the last element is padding, and may be anything",
        )
        short = whole[rank * -(-elements // new) : (rank + 1) * -(-elements // new)]
        expect.that(
            len(want) == len(short) or out.shape != short.shape,
            f"got {len(short)} elements, expected {len(want)} ({told}): all ranks' parts are equally long, zeros at the end",
        )
        floor = elements // new
        ends = [(out, "its elements are right, but behind the last of them there must be zeros")]
        is_kind = (out.shape, out.dtype) == (want.shape, want.dtype)
        is_right = is_kind and torch.equal(out[: len(short)], short)
        kinds = [(out, "the part has the dtype that is given, `dtype`")]
        rounded = [
            (want.to(kind).to(want.dtype), f"those were rounded to {kind} on the way: begin with a tensor of `dtype`")
            for kind in (torch.float32, torch.float64)
            if is_kind and not torch.equal(want.to(kind).to(want.dtype), want)
        ]  # fmt: skip
        expect.identical(
            out,
            want,
            what=told,
            hints=[
                *ends * is_right,
                *kinds * (out.dtype != want.dtype),
                *rounded,
                *self.shorter(whole, old, new, rank),
                (
                    whole[rank * floor : (rank + 1) * floor],
                    "⌈elements/new⌉ rounds up: -(-elements // new)",
                ),
                (whole[rank::new], "that is every n-th element: a rank has a run of neighbours"),
                (whole, "that is the whole tensor: this rank's part of it is asked for"),
            ],
        )

    @staticmethod
    def shorter(whole, old, new, rank):
        """A hint: what files of ⌊elements/old⌋ elements would give."""
        size, floor, wanted = -(-len(whole) // old), len(whole) // old, -(-len(whole) // new)
        out = whole.new_zeros(wanted)
        for place in range(rank * wanted, min((rank + 1) * wanted, floor * old)):
            out[place - rank * wanted] = whole[
                min(place // floor * size + place % floor, len(whole) - 1)
            ]
        return [(out, "⌈elements/old⌉ rounds up: -(-elements // old) elements are in each file")]

    @check(points=3, title="any number of ranks from any other, every element in its place")
    def test_parts(self, submission):
        ranks = [(4, 2), (2, 4), (4, 3), (3, 5), (1, 6), (6, 1), (3, 3), (8, 7)]
        cases = [(randint(1, 9) * 840, *pair, torch.float32) for pair in ranks]
        for part in self.parts(submission, cases):
            self.is_right(*part)

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
        for part in self.parts(submission, cases):
            self.is_right(*part)

    @check(points=3, title="only this rank's elements are read, each file at most once")
    def test_reads(self, submission):
        cases = [
            (601, 4, 3, torch.float32),
            (77, 3, 8, torch.float32),
            (1000, 2, 5, torch.float32),
            (29, 8, 2, torch.int64),
        ]
        for case, whole, rank, got in self.parts(submission, cases):
            self.is_right(case, whole, rank, got)
            elements, old, new, _ = case
            told = f"{elements} elements of {old} files, rank {rank} of {new}"
            first, last = (min(n * -(-elements // new), elements) for n in (rank, rank + 1))
            read = sum(stop - start for _, start, stop in got["reads"])
            expect.that(
                read <= last - first,
                f"{read} elements were read, {last - first} are this rank's ({told}): of a file read only from `start` to "
                "`stop`, and no padding",
            )
            files = [file for file, start, stop in got["reads"]]
            size = -(-elements // old)
            needed = [f for f in range(old) if max(first, f * size) < min(last, (f + 1) * size)]
            expect.that(
                sorted(files) == needed,
                f"{len(files)} reads of files {sorted(set(files))}, {needed} have this rank's elements, each in one piece "
                f"({told})",
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


GENERATORS = ("torch", "numpy", "python")
DRAWN = (
    "something drew from it after it was set. Loading may draw random numbers (run.loader does): set the generators "
    "last"
)
SEEDED = "it stands where the run's seed puts it, at its first number. Keep its state (torch.get_rng_state()), not its seed"
LAST = (
    "it was not kept, or something drew from it after it was set. Loading may draw random numbers (run.loader does): "
    "set the generators last"
)


def called(parts):
    """Names of parts, as PARTS begins with them."""
    return ", ".join(PARTS[p].partition(" is not")[0].partition(" are not")[0] for p in parts)


def differing(got, want):
    """The parts of a run that are not those of another, to the last bit."""
    return [part for part in PARTS if not as_list_equal(got[part], want[part])]


def as_list(value):
    return value if isinstance(value, list) else [value]


class TestSnapshot(Exercise):
    """All that a run is"""

    name = "Snapshot"
    reference = "minitrain.reliability.plain:Snapshot"
    hidden = HIDDEN

    def runs(self, submission):
        seed, before, after = randint(1, 10**6), randint(13, 24), 8
        causes = {
            "size mismatch": "the state of one part was loaded into another",
            "expected CPUBoolType": "torch.set_rng_state wants what torch.get_rng_state gave",
        }
        with expect.because(causes):
            found = submission.run(probes.snapped, seed, before, after)
        for part in differing(found["left"], found["at"]):
            raise CheckFailed(
                f"to take a snapshot has changed the run itself: {called([part])}. Only look: draw no number, change nothing"
            )
        return found, seed, before, after

    def is_still(self, found, which, before, words):
        """`which` run is as at the snapshot, and so is what was restored at once, which another check is about."""
        at, early = found["at"], differing(found["restored"], found["at"])
        for part in differing(found[which], at):
            told = f"{before} not as at the snapshot: {called([part])}"
            if part not in early:
                late = "It was right where the snapshot was restored at once" if early else words
                raise CheckFailed(f"{told}. {LAST if part in GENERATORS else late}")
        expect.that(
            not early,
            f"as above, where it was restored at once, not as at the snapshot: {called(early)}",
        )

    @check(
        points=4,
        title="another run is this one, in every part, once the snapshot is restored into it",
    )
    def test_parts(self, submission):
        found, seed, *_ = self.runs(submission)
        expect.that(
            found["unpicklable"] is None,
            f"the snapshot cannot be written to a disk ({found['unpicklable']}): keep what state_dict() gives and the "
            "generators' states, not the run or its parts",
        )
        wrong = differing(found["restored"], found["at"])
        expect.that(
            wrong != ["torch"],
            f"after restore all is as it was but torch's generator: {self.why_torch(found, seed)}",
        )
        for part in wrong:
            raise CheckFailed(f"after restore not all is as it was at the snapshot: {PARTS[part]}")

    @staticmethod
    def why_torch(found, seed):
        """What has become of torch's generator."""
        got, drawn = found["restored"]["torch"], torch.Generator()
        drawn.set_state(found["at"]["torch"])
        torch.rand(1, generator=drawn)
        seeded = torch.Generator().manual_seed(seed)
        for state, words in ((drawn, DRAWN), (seeded, SEEDED)):
            if torch.equal(got, state.get_state()):
                return words
        torch.rand(1, generator=seeded)
        return SEEDED if torch.equal(got, seeded.get_state()) else LAST

    @check(points=3, title="the snapshot is a copy: the run that goes on does not change it")
    def test_copy(self, submission):
        found, *_ = self.runs(submission)
        self.is_still(
            found,
            "restored late",
            "restored for the first time after the run had gone on,",
            "state_dict() gives the run's own tensors and lists, which each step changes: keep copies (copy.deepcopy)",
        )

    @check(
        points=2, title="it can be restored twice: a run that goes on from it does not change it"
    )
    def test_twice(self, submission):
        found, *_ = self.runs(submission)
        words = "load_state_dict may take the tensors that it is given as its own: hand it a copy"
        if any(part not in GENERATORS for part in differing(found["restored late"], found["at"])):
            words = "As above: the snapshot is no copy of what the run goes on with"
        for which in ("restored 3", "restored 4"):
            self.is_still(found, which, "restored again, after a run had gone on from it,", words)

    @check(
        points=2,
        title="the next eight losses are those of a run that was never interrupted",
    )
    def test_losses(self, submission):
        found, seed, before, after = self.runs(submission)
        wrong = [
            *differing(found["restored"], found["at"]),
            *differing(found["restored late"], found["at"]),
            *differing(found["restored 3"], found["at"]),
        ]
        words = "what was restored first was changed by what came after it"
        if wrong:
            words = f"as above, not all was as at the snapshot ({called(dict.fromkeys(wrong))})"
        states = generator_states()
        try:
            want = probes.plain_run(seed, before + after)[before:]
        finally:
            restore_generators(states)
        for got, which in zip(
            found["losses"], ("the same run, set back", "another run", "a third run")
        ):
            # Not bit for bit: ours were computed in another process, and a tensor that lies elsewhere
            # in memory may be summed in another order.
            off = [place for place, (a, b) in enumerate(zip(got, want)) if abs(a - b) > 1e-5 * b]
            expect.that(
                not off,
                f"{which}: loss {off[0] + 1 if off else 0} of 8 after restore differs from the uninterrupted run's: {words}",
            )


def as_list_equal(got, want):
    pairs = list(zip(as_list(got), as_list(want)))
    return len(as_list(got)) == len(as_list(want)) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
    )


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

    def ask(self, submission, cases, is_first=False):
        """cases: (times (N, S, 3), factor or None, who is slow, words); is_first: of the checks."""
        calls = [(times, *([] if factor is None else [factor])) for times, factor, _, _ in cases]
        got = submission.run(probes.called, calls)
        expect.left_alone(got, calls, ["times"], own=False)
        outs = [call["out"] for call in got]
        for out in outs:
            is_list = isinstance(out, (list, tuple)) and all(isinstance(r, int) for r in out)
            expect.that(is_list, f"got {expect.show(out)}, expected a list of ranks, such as [2]")
        outs = list(map(sorted, outs))
        causes = [
            self.likely(out, times, factor or 1.1) for out, (times, factor, *_) in zip(outs, cases)
        ]
        of_all = [words for words in causes[0] if all(words in others for others in causes)]
        for out, (times, factor, want, words) in zip(outs, cases):
            told = f"{len(times)} ranks, {times.shape[1]} steps"
            if out != want:
                hint = next(iter(of_all), None) if any(outs) else None
                hint = hint or self.by_a_spread(submission, is_first)
                facts = self.facts(times, factor or 1.1, sorted(set(out) ^ set(want)))
                raise CheckFailed(f"{told}: got {out}, expected {want}: {hint or words}. {facts}")

    @staticmethod
    def facts(times, factor, ranks):
        """Of the first rank that is wrongly in the answer, or wrongly not."""
        compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values
        middle = compute.median()
        deviation = 1.4826 * (compute - middle).abs().median()
        limit = max(factor * middle, middle + 5 * deviation)
        rank = ranks[0] if ranks else 0
        if rank >= len(compute):
            return f"There are ranks 0 to {len(compute) - 1}"
        return (
            f"(Rank {rank} computes {compute[rank]:.4g} s in the median; of all ranks the median is {middle:.4g} s, the "
            f"deviation {deviation:.3g} s, so the limit {limit:.4g} s.)"
        )

    def by_a_spread(self, submission, is_first):
        """Words for a standard deviation: in 40 ranks one that is slow passes five, and two do not."""
        several = []
        for slow in ([3], [3, 17]):
            compute = self.level(40, 5)
            compute[slow] *= 1.5
            several.append((timed(compute),))
        try:
            found = [call["out"] for call in submission.run(probes.called, several)]
        except CheckFailed:
            return None
        if found != [[3], []]:
            return None
        if not is_first:
            return "as above: a slow rank moves the standard deviation, and hides in it"
        return (
            "it seems to go by the standard deviation, which a slow rank moves itself, and so hides in it: in 40 ranks one "
            "that is slow is found, two alike are not. Here both are medians: the middle, and the deviation, 1.4826 times the "
            "median of |c - median|"
        )

    def likely(self, out, times, factor):
        """Words for the likely mistakes that accuse just these."""
        began, reached, left = times.unbind(dim=2)
        own = (reached - began).median(dim=1).values
        limit = max(factor * own.median(), own.median() + 5 * self.deviation(own))
        means = (reached - began).mean(dim=1)
        middle = own.quantile(0.5)
        far = 5 * 1.4826 * (own - middle).abs().quantile(0.5)
        both = "those ranks vary by nature: a slow rank is over *both* bounds, factor · median and median + 5 deviations: over the greater of the two"
        accused = [
            (self.by_limit(own, 1.0), "5 deviations are little where ranks are nearly alike: a slow rank is over both bounds, the factor's, too"),
            (self.by_limit(own, factor, scale=1.0), "a deviation is 1.4826 times the median of |c - median|"),
            (self.by_limit(reached.median(dim=1).values - began.median(dim=1).values, factor), "two medians are of one step in the middle: take each step's difference first, then the median of those"),
            ((own - own.median()).abs() > limit - own.median(), "a rank that is far *below* the median is fast: only what is over the limit"),
            (self.by_limit(reached.median(dim=1).values, factor), "the ranks' clocks do not agree: take differences on one clock only"),
            (self.by_limit((left - began).median(dim=1).values, factor), "whole steps hold the waiting, too: compare what each computed before the collective"),
            (self.by_limit((left - reached).median(dim=1).values, factor), "those wait, because they are fast or leave late: compare what each computed"),
            (self.by_limit(means, factor), "one long step (a collection of garbage) moves a mean: take each rank's median over the steps"),
            (own > factor * own.median(), both),
            (own > min(factor * own.median(), own.median() + 5 * self.deviation(own)), both),
            (own > max(factor * middle, middle + far), "of an even number of ranks the median is `torch.median`'s, the lower of the two in the middle"),
        ]  # fmt: skip
        return [words for ranks, words in accused if out == ranks.nonzero()[:, 0].tolist()]

    @staticmethod
    def deviation(compute):
        return 1.4826 * (compute - compute.median()).abs().median()

    @staticmethod
    def by_limit(compute, factor, scale=1.4826):
        middle = compute.median()
        deviation = scale * (compute - middle).abs().median()
        return compute > max(factor * middle, middle + 5 * deviation)

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

    @check(points=2, title="by what each computed before the collective, on its own clock")
    def test_compute(self, submission):
        cases = [self.misleading()]
        for ranks, count in [(5, 1), (8, 2), (4, 1), (3, 1), (7, 3)]:
            compute, slow = self.level(ranks, 9), sorted(sample(range(ranks), count))
            compute[slow] *= uniform(1.3, 3)
            words = "their compute time, from the first column to the second, is over the others'"
            cases.append((timed(compute), None, slow, words))
        cases.append((timed(self.level(6, 5)), None, [], "all are equally fast"))
        self.ask(submission, cases, is_first=True)

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
        words = "a rank is slow where most of its steps are"
        # In the step that is the middle one of all, rank 3 pauses: its clock's median moves, its steps' does not.
        middle = self.level(5, 9)
        middle[3, 4] *= 3
        self.ask(
            submission,
            [
                (timed(case), None, out, words)
                for case, out in ((compute, []), (slow, [5]), (middle, []))
            ],
        )

    @check(points=2, title="over the median by the factor and by 5 deviations of the others")
    def test_limit(self, submission):
        spread = torch.linspace(1.0, 1.3, 9, dtype=torch.float64)[torch.randperm(9)]
        varied = (
            0.2 * spread[:, None].expand(9, 7).clone()
        )  # 1.3 is 13% over the median, 2 deviations
        tight = self.level(7, 9, noise=0.001)
        tight[3] *= 1.05  # far over 5 deviations, and 5%
        narrow, strict = tight.clone(), self.level(7, 9)
        strict[2] *= 1.3
        # |c - median| is 0, 1, 1, 2, 2, 3, 12 percent: its median 2, so 12 is 6 of them and 4 deviations
        noisy = torch.tensor([1.0, 0.99, 1.01, 0.98, 1.02, 0.97, 1.12], dtype=torch.float64)
        noisy = 0.3 * noisy[:, None].expand(7, 5).clone()
        passed = noisy.clone()
        passed[6] = 0.3 * 1.163  # 5.5 deviations
        self.ask(
            submission,
            [
                (timed(varied), None, [], "its ranks vary by nature: 5 deviations are not passed"),
                (timed(tight), None, [], "5% over the median: the factor is 1.1"),
                (timed(narrow), 1.02, [3], "the factor was given as 1.02"),
                (timed(strict), 1.5, [], "the factor was given as 1.5"),
                (timed(noisy), None, [], "a deviation is 1.4826 times the median of |c - median|"),
                (timed(passed), None, [6], "it is over both bounds"),
                *self.of_even_numbers(),
            ],
        )

    def of_even_numbers(self):
        """Half of the ranks are slow, and so the two in the middle differ."""
        words = "of an even number of ranks the median is `torch.median`'s, the lower of the two in the middle"
        for ranks in (2, 4):
            compute, slow = self.level(ranks, 9), sorted(sample(range(ranks), ranks // 2))
            compute[slow] *= 1.4
            yield timed(compute), None, slow, words


def decisions(losses, alpha=0.97, z=6.0, warmup=25, patience=3, learns=False, counts_on=False, plain=False,
              nan_passes=False, both=False, forever=False, counts_all=False, old_first=False, no_floor=False,
              plain_square=False, one_more=False, uncounted=False, signed=False, trace=None):  # fmt: skip
    """The rule, and with an option set a likely mistake; trace: a list for (taken so far, mean, deviation)."""
    count, mean, variance, skipped, out = 0, 0.0, 0.0, 0, []
    for loss in losses:
        far = loss - mean
        least = 0.0 if no_floor else 1e-3 * (mean if signed else abs(mean))
        deviation = max(math.sqrt(variance), least)
        if trace is not None:
            trace.append((count, mean, deviation))
        spike = count >= warmup + one_more and (abs(far) if both else far) > z * deviation
        bad = not math.isfinite(loss) and (count >= warmup or not nan_passes)
        if uncounted and not math.isfinite(loss):
            out.append("skip")
            continue
        if spike or bad:
            skipped += 1
            back = skipped >= patience if forever else skipped == patience
            out.append("back" if back else "skip")
            if skipped == patience and not forever:
                skipped = 0
            if not learns or bad:
                count += counts_all
                continue
        else:
            out.append("take")
            skipped = skipped if counts_on else 0
        if not math.isfinite(loss):
            continue
        count += 1
        keep = 1 - 1 / count if plain else alpha if old_first else min(alpha, 1 - 1 / count)
        mean += (1 - keep) * far
        square = (1 - keep) * far * far
        variance = keep * variance + (1 if plain_square else keep) * square
    return out


MISTAKES = {
    "learns": "a spike was taken into mean and variance, so the next one looks normal: add what is taken only",
    "counts_on": "skipped steps are counted although good ones lie between: a step that is taken ends the row",
    "plain": "that is the mean of all losses: of the first ones only, later it forgets, keep = min(alpha, 1 - 1/n)",
    "nan_passes": "a loss that is not a number passed in the warm-up: it is out of line at any time",
    "both": "a loss far *below* the mean is no spike: only what is over it",
    "counts_all": "n counts the losses that are *taken*: a skipped one, or NaN, neither ends the warm-up nor makes keep larger",
    "one_more": "the warm-up is over once `warmup` losses have been taken: count >= warmup",
    "no_floor": "the deviation is at least a thousandth of the mean, however still the losses are",
    "plain_square": "the variance is keep · (variance + (1 - keep) · far²): both are multiplied by keep",
    "old_first": "that is with keep = alpha from the first loss on: of the first ones it is 1 - 1/n, keep = min(alpha, 1 - 1/n)",
    "signed": "the least deviation is a thousandth of the mean's *absolute* value: a loss may be negative",
    "uncounted": "a loss that is not finite counts in the row like any other that is out of line: the `patience`-th says back",
    "forever": "after it has gone back the row begins anew: set the count of skipped steps to 0",
}


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
        got = submission.run(probes.decided, series)

        def told(words):
            return words if rows else ["skip" if word == "back" else word for word in words]

        hints = [
            words
            for mistake, words in MISTAKES.items()
            if all(
                told(own) == told(decisions(losses, **options, **{mistake: True}))
                for own, (options, losses) in zip(got, series)
            )
        ]
        hints = ["either " + "; or ".join(hints)] if len(hints) > 1 else hints
        for own, (options, losses) in zip(got, series):
            trace = []
            want = decisions(losses, **options, trace=trace)
            unknown = [word for word in own if word not in ("take", "skip", "back")]
            expect.that(
                not unknown,
                f"got {unknown[0] if unknown else ''!r}: the answer is 'take', 'skip' or 'back'",
            )

            if told(own) == told(want):
                continue
            pairs = enumerate(zip(told(own), told(want)))
            place = next(i for i, pair in pairs if pair[0] != pair[1])
            near = ", ".join(f"{loss:.3g}" for loss in losses[max(0, place - 3) : place + 1])
            raise CheckFailed(
                f"step {place} (losses … {near}): got '{own[place]}', expected '{want[place]}': "
                + (
                    hints
                    or [self.facts(losses[place], options, *trace[place], want[:place], own[place])]
                )[0]
            )

    @staticmethod
    def facts(loss, options, count, mean, deviation, before, own):
        """What the rule goes by at this step."""
        z, warmup = options.get("z", 6.0), options.get("warmup", 25)
        is_out = not math.isfinite(loss) or (count >= warmup and loss - mean > z * deviation)
        if is_out and own != "take":
            row = 1
            while row <= len(before) and before[-row] == "skip":
                row += 1
            return f"it is number {row} of a row that is out of line, with patience={options.get('patience', 3)}"
        if not math.isfinite(loss):
            return "what is not finite is out of line at any time"
        if count < warmup:
            return f"{count} losses were taken before, fewer than warmup={warmup}, and so all that is finite passes"
        over = f"the warm-up is over with {warmup} that were taken; " if count == warmup else ""
        return (
            f"{over}of the {count} that were taken the running mean is {mean:.4g}, the deviation {deviation:.3g}, and with "
            f"z={z:g} only what is over {mean + z * deviation:.4g} is out of line ({options or 'the defaults'})"
        )

    @check(points=2, title="over the running mean by z deviations: skipped; what falls is not")
    def test_spikes(self, submission):
        deep, steady = (
            self.calm(90, (50, 80), height=2.5),
            [2.0 + 1e-5 * random() for _ in range(40)],
        )
        deep[65] -= 1.5  # 30 deviations below
        drift = [9.0 - 0.02 * step + 0.05 * math.sin(3.3 * step) for step in range(300)]
        drift[280] += 8.0
        short = self.falling(40, (14,))
        negative = [-loss for loss in steady]  # 0.001 over it is no spike: half a deviation
        self.ask(
            submission,
            [
                ({}, self.falling(90, (40, 55, 80))),
                ({}, deep),
                ({}, [*steady, 2.001, 2.5, 2.0]),
                ({}, [*negative, -1.999, -1.5, -2.0]),
                ({"warmup": 10, "z": 8.0}, short),
                ({}, drift),
                ({"alpha": 0.9}, drift),
            ],
            rows=False,
        )

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

    def ask(self, submission, calls, tol):
        got = submission.run(probes.called, calls)
        for call, (save, chips, failures, chip_hours) in zip(got, calls):
            between = chip_hours * 3600 / failures / chips
            young = math.sqrt(2 * save * between)
            hints = [
                (
                    young,
                    "that is Young's: it neglects that saves fail too, and is too long by about 2δ/3",
                ),
                (young - save, "those are the first terms: the series goes on, (1 + x/3 + x²/9)"),
                (best(save, between / 3600), "M is in seconds, as the save is: 3600 to an hour"),
                (best(save, between / 60), "M is in seconds, as the save is: 3600 to an hour"),
                (
                    best(save, between * chips**2),
                    "more chips fail more often: divide by their number",
                ),
                (
                    best(save, between * chips),
                    "so seldom one chip fails: of all of them one fails chips times as often",
                ),
                (
                    best(save, between) + save,
                    "that is from save to save: of training only, without δ",
                ),
                (
                    best(save, between * failures),
                    "that is as if there had been one failure: divide by their number",
                ),
            ]
            expect.close(
                call["out"],
                best(save, between),
                tol=tol,
                what=f"{save:g} s a save, {chips:,} chips, {failures} failures in {chip_hours:g} chip-hours: seconds",
                hints=hints,
            )

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
        expect.that(
            never == math.inf,
            f"nothing has failed: got {expect.show(never)}, expected math.inf, never save",
        )
        self.of_long_saves(submission)

    def of_long_saves(self, submission):
        between, share = uniform(100, 900), uniform(1.1, 1.6)
        save = share * between
        got = submission.run(probes.called, [(save, 8, 10, between * 80 / 3600)])[0]["out"]
        expect.close(
            got,
            best(save, between),
            tol=0.07,
            what=f"a save of {share:.2f} times the mean time between failures: seconds",
            hints=[
                (save, "that is the save's own length: training between saves may well be shorter than a save"),
                (between, "that is M, for saves of 2 M or longer: below it the series holds"),
            ],
        )  # fmt: skip
        x = math.sqrt(1.5)  # of a save of 3 M
        series = math.sqrt(6) * between * (1 + x / 3 + x**2 / 9) - 3 * between
        got = submission.run(probes.called, [(3 * between, 8, 10, between * 80 / 3600)])[0]["out"]
        expect.close(
            got,
            between,
            tol=0.07,
            what="a save of three times the mean time between failures: seconds",
            hints=[
                (math.sqrt(6) * between, "that is Young's, where saves are long: there it is M"),
                (series, "that is the series, which holds for saves below 2 M: beyond it is M"),
                (between / 3600, "M is in seconds, as the save is: 3600 to an hour"),
                (between / 60, "M is in seconds, as the save is: 3600 to an hour"),
                (
                    best(3 * between, 64 * between),
                    "more chips fail more often: divide by their number",
                ),
                (
                    best(3 * between, 10 * between),
                    "that is as if there had been one failure: divide by their number",
                ),
                (
                    best(3 * between, 8 * between),
                    "so seldom one chip fails: of all of them one fails chips times as often",
                ),
            ],
        )


# --- experiments ---


class TestPowerCuts(Experiment):
    """The plug pulled everywhere"""

    name = "power_cuts"
    rests_on = ("save_whole", "newest_whole")

    @check(points=3, title="yours is never torn and never lost; the naive ones are")
    def test_cuts(self, table):
        rows = {row["way"]: row for row in table}
        for way in ("in place", "renamed, not flushed", "yours"):
            expect.that(way in rows, f"there is no row '{way}'")
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
        rows = {row["way"]: row for row in table}
        for way in ("waits", "beside"):
            expect.that(way in rows, f"there is no row '{way}'")
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
        rows = {row["plan"]: row for row in table}
        expect.that(self.plan in rows, f"there is no row '{self.plan}'")
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
        rows = {row["where"]: row for row in table}
        for where in ("weight", "gradient", "nowhere"):
            expect.that(where in rows, f"there is no row '{where}'")
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
        rows = {
            (r["chips"], r["save_seconds"]): r["interval"]
            for r in expect.recorded(records, "goodput")
        }
        few, many = rows.get((16384, 15.0)), rows.get((65536, 15.0))
        expect.that(
            few and many, "your table needs rows for 16,384 and 65,536 chips with saves of 15 s"
        )
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
        rows = {row["plan"]: row for row in expect.recorded(records, "llama3")}
        expect.that(TestLlama3.plan in rows, f"your table has no row '{TestLlama3.plan}'")
        row = rows[TestLlama3.plan]
        parts = {part: row[part] for part in ("saving", "redone", "restarting", "waiting")}
        expect.among(value, parts)
        expect.that(
            value == max(parts, key=parts.get), f"got {value!r}: another part is larger in your row"
        )
