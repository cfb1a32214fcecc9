"""One learner's exercise, ready to run in the sandbox: the `submission` argument of a check.

    attempt = live_attempt(f, item, lab, sandbox)            from a notebook's kernel
    attempt = attempt_of(item, submission, {}, sandbox)      from a file

    submission.run(probe, *args)                  -> probe(f, *args), in a fresh sandboxed child
    submission.launch(probe, *args, ranks=N)      -> Results of probe(group, f, *args) on each rank

`f` is the learner's function or class; probe and arguments are the grader's, and only plain data
and tensors come back. Any other outcome raises SubmissionFailed with a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from minitrain.errors import InputError
from minitrain.lab.failures import NotAttempted, SubmissionFailed
from minitrain.lab.grading.checks import Exercise
from minitrain.lab.grading.course import LabChecks, pickled_reference
from minitrain.lab.grading.pickling import SubmissionPickler, pickled_probe
from minitrain.lab.grading.submission import Submission
from minitrain.lab.sandbox.loader import Solution
from minitrain.lab.sandbox.relay import Note
from minitrain.lab.sandbox.request import Reply, Request
from minitrain.lab.sandbox.sandbox import Sandbox
from minitrain.measure.traffic import Trace
from minitrain.network.fabric import Fabric, find_fabric
from minitrain.ranks.launch import Results

LEAST = 0.3  # seconds; no run can be judged in less
SUBMISSION_SECONDS = 300.0  # for all exercises of a file together; an honest lab takes a fifth
HANGS = 3  # hung runs of a file, after which deadlines are short


@dataclass
class Spent:
    """Seconds spent on one file's exercises so far, so that no file delays a class."""

    seconds: float = 0.0
    hangs: int = 0


class Attempt:
    """Runs the object `name` of a solution, within its exercise's time limit."""

    def __init__(
        self, sandbox: Sandbox, solution: Solution, name: str, spent: Spent | None = None
    ) -> None:
        self.sandbox, self.solution, self.name = sandbox, solution, name
        self.spent = spent or Spent()
        self.traces: list[Trace] = []  # of the last launch, as recorded by each rank
        self.notes: list[list[Note]] = []  # of each of its ranks, as recorded by the relay
        self.used_seconds = 0.0
        self.has_hung = False

    def run(self, probe: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """The value that `probe(f, *args)` returned."""
        return self._send(probe, args, timeout).results[0]

    def launch(
        self,
        probe: Callable[..., Any],
        *args: Any,
        ranks: int,
        fabric: str | Fabric | None = None,
        timeout: float | None = None,
    ) -> Results:
        """The values that `probe(group, f, *args)` returned, by rank, with `.traces`, as of `launch`."""
        assert ranks > 0, "a launch has ranks"
        reply = self._send(probe, args, timeout, ranks, fabric)
        try:
            traces = [Trace.from_dict(plain) for plain in reply.traces]
            notes = [[Note(*fields) for fields in rank] for rank in reply.notes]
            if {len(traces), len(notes), len(reply.results)} != {ranks}:
                raise ValueError("not one result a rank")
            timing = (float(reply.seconds), reply.emulated_seconds, reply.fabric)
        except (KeyError, TypeError, ValueError) as error:
            raise SubmissionFailed("tampered", "its traces are not as the grader's own") from error
        self.traces, self.notes = traces, notes
        return Results(reply.results, traces, *timing)

    def _send(
        self,
        probe: Callable[..., Any],
        args: tuple,
        timeout: float | None,
        ranks: int = 0,
        fabric: str | Fabric | None = None,
    ) -> Reply:
        packed = pickled_probe(probe, args)  # while the sandbox may still be starting
        self.sandbox.wait_until_ready()  # not counted in the exercise's time
        request = Request(
            solution=self.solution,
            name=self.name,
            probe=packed,
            ranks=ranks,
            fabric=None if fabric is None else cloudpickle.dumps(find_fabric(fabric)),
            seconds=self._seconds(timeout),
        )
        began = time.monotonic()
        try:
            return self.sandbox.run(request)
        except SubmissionFailed:
            if time.monotonic() - began < request.seconds:
                raise
            if not self.has_hung and request.seconds < (timeout or self.sandbox.limits.seconds):
                raise SubmissionFailed("timeout", self._late(request.seconds)) from None
            self.has_hung = True
            self.spent.hangs += 1
            raise
        finally:
            self.used_seconds += time.monotonic() - began
            self.spent.seconds += time.monotonic() - began

    def _seconds(self, timeout: float | None) -> float:
        """The deadline of the next run: short after a hang, and within the exercise's remaining
        time."""
        limits = self.sandbox.limits
        left = limits.exercise_seconds - self.used_seconds
        if left < LEAST:
            words = f"not run: the checks before it took all of the {limits.exercise_seconds:g} s"
            raise SubmissionFailed("timeout", words)
        if self.spent.seconds > SUBMISSION_SECONDS:
            words = f"not run: the exercises before it took all of the {SUBMISSION_SECONDS:g} s"
            raise SubmissionFailed("timeout", words)
        hangs = self.has_hung or self.spent.hangs >= HANGS
        usual = limits.after_hang if hangs else (timeout or limits.seconds)
        return min(usual, left)

    def _late(self, seconds: float) -> str:
        """The failure of a run that got too little time to be judged."""
        return (
            f"not finished in the {seconds:.1f} s that the checks before it left of the exercise's "
            f"{self.sandbox.limits.exercise_seconds:g} s: a slow solution, or a busy machine; then "
            "run this cell again"
        )

    def never_waited(self) -> str | None:
        """Describes the last launch's first operation that nobody waited for."""
        try:
            for trace in self.traces:
                trace.check_waited()
        except InputError as error:
            return str(error)
        return None


def attempt_of(
    item: type[Exercise],
    submission: Submission,
    substitutes: dict[str, bytes],
    sandbox: Sandbox,
    spent: Spent | None = None,
) -> Attempt:
    """One exercise of a file; NotAttempted where it is missing or still the stub.

    substitutes: pickled references, by name, for exercises that do not pass yet.
    """
    if not submission.defines(item.name):
        raise NotAttempted(f"there is no `{item.name}` in {submission.path.name}")
    if submission.is_stub(item.name):
        raise NotAttempted("not filled in yet")
    solution = Solution(submission.cells, substitutes=dict(substitutes))
    return Attempt(sandbox, solution, item.name, spent)


def live_attempt(submitted: Any, item: type[Exercise], lab: LabChecks, sandbox: Sandbox) -> Attempt:
    """A function from a notebook's kernel, with its dependencies; CheckFailed where it cannot be
    sent.

    Where it uses another exercise's reference (as `lab.grade` returned it) that one is sent too.
    """
    others = [e for e in lab.items if issubclass(e, Exercise) and e is not item]
    pickler = SubmissionPickler(item, others)
    live = pickler.pickled(submitted)
    used = {e.name: pickled_reference(e) for e in others if e.name in pickler.used}
    return Attempt(sandbox, Solution((), live, pickler.sources, used), item.name)
