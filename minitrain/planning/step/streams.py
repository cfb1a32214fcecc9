"""One layer as tasks on two streams, compute and communication: overlapped and exposed time.

Each stream runs its tasks in issue order; a task starts when its stream is free and the tasks it
comes `after` are done. While compute waits, the time is *exposed* and booked to the task it waits
for. Communication kernels take multiprocessors (DeepSeek-V3 gives them 20 of 132, 2412.19437 §3.2),
memory bandwidth and power from concurrent kernels: each overlapped second costs compute
`CONTENTION` of a second.

    compute  ▇▇▇ norm ▇▇▇ ····· ▇▇▇▇ qkv ▇▇▇▇ ▇▇ …
    comm                  ▇ tp ▇              ▇▇▇ next layer's weights ▇▇▇
                          exposed             hidden

A layer's forward, with tensor parallelism (Shoeybi et al. 2019) and sequence parallelism (SP):

    norm → [SP: all-gather] → qkv → rope → attention → out → [all-reduce | SP: reduce-scatter] → add
    norm → [SP: all-gather] → up → activation → down → [all-reduce | SP: reduce-scatter] → add

Backward runs in reverse: each matmul twice, for its input and for its weight, with the all-reduce
of an input's gradient overlapping the weight's matmul. Element-wise kernels move twice as much as
in forward; weight gradients are accumulated inside the matmul's kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from minitrain.planning.run import Run
from minitrain.planning.step.layer_times import LayerTimes

CONTENTION = 0.3  # between 0.15 = 20/132 and 0.7 the published sharded runs fit equally well
COMMUNICATION = ("tp", "cp", "ep", "dp")


@dataclass(frozen=True)
class Task:
    """A task; `part` names its kind, and communication runs on the second stream."""

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
    """Runs the tasks; compute time and waits by part, after each `every` tasks."""
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
            passed = Passed(defaultdict(float, parts))
            if busy > exposed:
                passed.parts["contention"] += CONTENTION * (busy - exposed)
            found.append(passed)
    return found


def repeated(block: Sequence[Task], times: int) -> Passed:
    """`times` consecutive copies of a block, whose `after` indices are relative to its own start.

    After the first two, each copy takes the same time: the streams are in a steady state.
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

    An `after` of -1 - i is task i of the previous copy (weights fetched one layer ahead).
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


def forward_tasks(run: Run, x: LayerTimes) -> list[Task]:
    """A layer's forward; `after` indexes this list; blocking communication delays the next."""
    out: list[Task] = []
    sp, tp = run.plan.sp, run.plan.tp > 1
    for half_forward in (attention_forward, mlp_forward):
        compute(out, "elementwise", x.norm)
        if sp and tp:
            blocking(out, "tp", x.gather)
        half_forward(out, x)
        if tp:
            blocking(out, "tp", x.gather if sp else 2 * x.gather)
        compute(out, "elementwise", x.add)
    return out


def attention_forward(out: list[Task], x: LayerTimes) -> None:
    compute(out, "matmul", x.qkv)
    compute(out, "elementwise", x.rotate)
    exchange = issued(out, "cp", x.context)
    compute(out, "attention", x.scores)
    compute(out, "attention", x.softmax, exchange)
    compute(out, "matmul", x.out)


def mlp_forward(out: list[Task], x: LayerTimes) -> None:
    compute(out, "elementwise", x.route)
    sent = issued(out, "ep", 2 * x.dispatch)  # overlaps another microbatch's matmuls
    compute(out, "matmul", x.up)
    compute(out, "elementwise", x.activation)
    compute(out, "matmul", x.down, sent)


def backward_tasks(run: Run, x: LayerTimes) -> list[Task]:
    out: list[Task] = []
    if run.plan.recompute == "full":
        again(out, repeated_tasks(run, x))
    for half in ("mlp", "attention"):
        compute(out, "elementwise", 2 * x.add)
        half_backward(out, run, x, half)
        compute(out, "elementwise", 2 * x.norm)
    return out


def repeated_tasks(run: Run, x: LayerTimes) -> list[Task]:
    """The tasks repeated by full recomputation.

    Megatron's checkpoint repeats the layer. torch.utils.checkpoint stops once it has everything
    backward needs, which excludes the outputs of the last matmul and addition.
    """
    tasks = forward_tasks(run, x)
    return tasks[:-2] if run.plan.software == "eager" else tasks


def half_backward(out: list[Task], run: Run, x: LayerTimes, half: str) -> None:
    """Half a layer's backward: gathers, row-parallel matmul, inner part, column-parallel matmul."""
    sp, tp = run.plan.sp, run.plan.tp > 1
    row, column = (x.down, x.up) if half == "mlp" else (x.out, x.qkv)
    if sp and tp:
        blocking(out, "tp", x.gather)
    sent = issued(out, "ep", 2 * x.dispatch) if half == "mlp" else ()
    compute(out, "matmul", 2 * row)
    if half == "mlp":
        compute(out, "elementwise", 2 * (x.activation + x.route))
    else:
        scores_backward(out, run, x)
    inputs = issued(out, "tp", x.gather) if sp and tp else ()  # gathered again, for dW
    compute(out, "matmul", column, sent)
    reduced = issued(out, "tp", (1 if sp else 2) * x.gather) if tp else ()
    compute(out, "matmul", column, inputs)
    compute(out, "elementwise", 0.0, reduced)


def scores_backward(out: list[Task], run: Run, x: LayerTimes) -> None:
    """Unfused, two matmuls each for QKᵀ and AV; fused, 2.5 times the forward's FLOPs."""
    exchange = issued(out, "cp", 2 * x.context)
    if run.plan.modern:
        compute(out, "attention", 2.5 * x.scores)
    else:
        if run.plan.recompute == "selective":
            compute(out, "recompute", x.scores + x.softmax)
        compute(out, "attention", 2 * x.scores + 1.2 * x.softmax)
    compute(out, "elementwise", 2 * x.rotate, exchange)


def again(out: list[Task], tasks: list[Task]) -> None:
    """Appends the same tasks, booked to recomputation; communication keeps its name."""
    start = len(out)
    for task in tasks:
        part = task.part if task.communicates else "recompute"
        out.append(Task(part, task.seconds, tuple(start + i for i in task.after)))


def compute(out: list[Task], part: str, seconds: float, after: tuple[int, ...] = ()) -> None:
    """Adds a task on the compute stream; `after`: communication that it needs."""
    out.append(Task(part, seconds, after))


def issued(out: list[Task], part: str, seconds: float) -> tuple[int, ...]:
    """Adds communication that starts once everything before it is done; -> its index."""
    if not seconds:
        return ()
    out.append(Task(part, seconds, previous(out)))
    return (len(out) - 1,)


def blocking(out: list[Task], part: str, seconds: float) -> None:
    """Adds communication that the next task waits for."""
    index = issued(out, part, seconds)
    if index:
        out.append(Task("elementwise", 0.0, index))


def previous(out: list[Task]) -> tuple[int, ...]:
    """The index of the last task on the compute stream."""
    computing = [index for index, task in enumerate(out) if not task.communicates]
    return tuple(computing[-1:])
