"""Two streams on one chip, compute and communication: what overlaps, and what is exposed.

Each stream runs its tasks in the order in which they are issued; a task starts when its stream is
free and what it comes `after` is done. While compute waits, the time is *exposed* and booked to the
task that it waited for. Communication kernels take multiprocessors (DeepSeek-V3 gives them 20 of
132, 2412.19437 §3.2), memory bandwidth and power from what runs beside them: each second hidden
costs compute `CONTENTION` of a second.

    compute  ▇▇▇ norm ▇▇▇ ····· ▇▇▇▇ qkv ▇▇▇▇ ▇▇ …
    comm                  ▇ tp ▇              ▇▇▇ next layer's weights ▇▇▇
                          exposed             hidden
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

CONTENTION = 0.3  # between 0.15 = 20/132 and 0.7 the published sharded runs fit equally well
COMMUNICATION = ("tp", "cp", "ep", "dp")


@dataclass(frozen=True)
class Task:
    """`part` names what it is; communication parts run on the second stream."""

    part: str
    seconds: float
    after: tuple[int, ...] = ()  # indices of tasks issued before

    @property
    def communicates(self) -> bool:
        return self.part in COMMUNICATION


@dataclass
class Passed:
    """Seconds of a list of tasks by part; the parts sum to `seconds`."""

    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def add(self, other: Passed, times: float = 1.0) -> None:
        for part, seconds in other.parts.items():
            self.parts[part] += times * seconds


def run_streams(tasks: Sequence[Task], every: int) -> list[Passed]:
    """Runs the tasks; compute's own time and its waits by part, after each `every` tasks."""
    found: list[Passed] = []
    parts: dict[str, float] = defaultdict(float)
    ends: list[float] = []
    compute = communication = busy = exposed = 0.0
    for task in tasks:
        ready = max([ends[i] for i in task.after], default=0.0)
        if task.communicates:
            communication = max(communication, ready, 0.0) + task.seconds
            busy += task.seconds
            ends.append(communication)
        else:
            if ready > compute:
                waited = next(tasks[i].part for i in task.after if ends[i] == ready)
                parts[waited] += ready - compute
                exposed += ready - compute
                compute = ready
            compute += task.seconds
            parts[task.part] += task.seconds
            ends.append(compute)
        if len(ends) % every == 0:
            found.append(with_contention(parts, max(0.0, busy - exposed)))
    return found


def with_contention(parts: dict[str, float], hidden: float) -> Passed:
    passed = Passed(defaultdict(float, parts))
    if hidden:
        passed.parts["contention"] += CONTENTION * hidden
    return passed


def repeated(block: Sequence[Task], times: int) -> Passed:
    """`times` copies of a block one after the other; its `after` are relative to its own start.

    After the first two, each further copy takes the same again: the streams are in a steady state.
    """
    copies = run_streams(chain(block, min(times, 3)), len(block))
    if times <= 3:
        return copies[-1]
    passed = Passed()
    passed.add(copies[2], times - 2)
    passed.add(copies[1], -(times - 3))
    return passed


def chain(block: Sequence[Task], times: int) -> list[Task]:
    """Copies of `block`, each with its dependencies moved to its own copy.

    An `after` of -1 - i is task i of the copy before (weights that were fetched one layer ahead).
    """
    size, tasks = len(block), []
    for copy in range(times):
        for task in block:
            after = tuple(
                index
                for i in task.after
                if (index := copy * size + i if i >= 0 else (copy - 1) * size - 1 - i) >= 0
            )
            tasks.append(Task(task.part, task.seconds, after))
    return tasks
