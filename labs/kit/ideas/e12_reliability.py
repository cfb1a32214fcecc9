"""Schematics of lab e12, reliability."""

from __future__ import annotations

import zlib

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PALE, PINK, lighter
from minitrain.lab.drawing.shapes import DASHED, arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.reliability.disk import FragileDisk
from minitrain.words import plural

OLD, NEW, TEMPORARY = "step-04", "step-08", ".new"
WAYS: dict[str, list[tuple[str, ...]]] = {
    "in place": [("write", OLD), ("flush", OLD)],
    "renamed, not flushed": [("write", TEMPORARY), ("rename", TEMPORARY, NEW)],
    "flushed, then renamed": [
        ("write", TEMPORARY),
        ("flush", TEMPORARY),
        ("rename", TEMPORARY, NEW),
        ("flush_names",),
    ],
}
KINDS = {"the old one": BLUE, "the new one": GREEN, "a torn one": ORANGE}


def sealed(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little") + data


def newest(disk: FragileDisk) -> str:
    """The newest checkpoint, found by name alone."""
    content = disk.read(max(name for name in disk.names() if name.startswith("step-")))
    if content == sealed(b"the new state"):
        return "the new one"
    return "the old one" if content == sealed(b"the old state") else "a torn one"


def outcomes(way: str) -> list[tuple[str, list[str]]]:
    """(operation, possible newest checkpoints after a power cut following it), from before the
    first."""
    disk = FragileDisk({OLD: sealed(b"the old state")})
    found = [("(none yet)", ["the old one"])]
    for operation, *names in WAYS[way]:
        data = [sealed(b"the new state")] if operation == "write" else []
        getattr(disk, operation)(*names, *data)
        possible = {newest(left) for left in disk.after_cut()}
        words = operation.replace("_", " ") + (f" {names[0]}" if names else "")
        found.append((words, [kind for kind in KINDS if kind in possible]))
    return found


def alt_power_cuts(way: str) -> str:
    columns = outcomes(way)
    torn = [words for words, kinds in columns if "a torn one" in kinds]
    verdict = f"after {' and after '.join(torn)} the newest checkpoint may be torn"
    verdict = verdict if torn else "the newest checkpoint is never torn"
    last = " or ".join(columns[-1][1])
    return f"""{way.capitalize()}: {verdict}. Columns of operations, and below each what a power cut
    may leave as the newest checkpoint. After the last it is {last}."""


@schematic(alt_power_cuts, 10.0, 2.4, way=(list(WAYS), "renamed, not flushed"))
def power_cuts(ax: Axes, way: str) -> None:
    """The checkpoint that survives a power cut, by operation, on the emulated disk."""
    left, right, high = 2.6, 13.3, 0.5  # horizontal extent of the columns, height of a row
    bare(ax, right, 2.9)
    columns = outcomes(way)
    step = (right - left) / len(columns)
    for y, words in ((0.55, "operation"), (1.4, "newest checkpoint,\nif the power goes then")):
        write(ax, left - 0.25, y, words, ha="right")
    for number, (words, kinds) in enumerate(columns):
        x, wide = left + number * step, step - 0.35
        if number:
            arrow(ax, (x - 0.35, 0.3 + high / 2), (x, 0.3 + high / 2))
        box(ax, x, 0.3, wide, high, PALE if number else "white", words)
        for row, kind in enumerate(kinds):
            y = 1.15 + 0.6 * row
            box(ax, x, y, wide, high, KINDS[kind], f"or {kind}" if row else kind)


COPY, WRITE, EVERY, UNTIL = 0.35, 3.0, 4, 20.0
SaveSpan = tuple[str, float, float, str]  # lane, start, end, what


def lanes(way: str) -> list[SaveSpan]:
    """The work of each lane until UNTIL: a save after every fourth step."""
    now, free, steps, found = 0.0, 0.0, 0, list[SaveSpan]()
    while now + 1 <= UNTIL:
        found.append(("training", now, now + 1, "step"))
        now, steps = now + 1, steps + 1
        if steps % EVERY:
            continue
        if way == "waits":
            found += [("training", now, now + WRITE, "waits"), ("disk", now, now + WRITE, "write")]
            now += WRITE
        else:
            now = max(now, free)  # one save at a time
            found.append(("training", now, now + COPY, "copy"))
            now += COPY
            free = now + WRITE
            found.append(("disk", now, free, "write"))
    return found


def steps_done(way: str) -> int:
    return sum(what == "step" for _, _, _, what in lanes(way))


def alt_saving_beside(way: str) -> str:
    how = {
        "waits": "Training waits while the disk writes",
        "beside": "A short copy, and the disk writes beside the next steps",
    }
    last = f" Where training waits, it makes {steps_done('waits')}." if way == "beside" else ""
    return f"""{how[way]}: {plural(steps_done(way), "step")} in {UNTIL:g} steps' time. Two lanes,
    training and disk, a save after every {EVERY} steps; a write takes {WRITE:g}, a copy
    {COPY:g}.{last}"""


@schematic(alt_saving_beside, 10.0, 2.6, way=(["waits", "beside"], "beside"))
def saving_beside(ax: Axes, way: str) -> None:
    """A blocking save, and one in the background. Time in units of one step."""
    left, high = 1.6, 0.55
    bare(ax, left + UNTIL + 2.2, 2.95)
    colors = {"step": BLUE, "copy": PINK, "write": ORANGE}
    for row, lane in enumerate(("training", "disk")):
        y = 0.3 + 0.9 * row
        write(ax, left - 0.2, y + high / 2, lane, ha="right")
        for own, start, end, what in lanes(way):
            if own != lane:
                continue
            if what == "waits":
                box(ax, left + start, y, end - start - 0.05, high, "white", "waits", 8, **DASHED)
            else:
                words = what if end - start > 0.9 else ""
                box(ax, left + start, y, end - start - 0.05, high, colors[what], words, 8)
    ax.plot([left, left + UNTIL], [1.95, 1.95], color="#666666", linewidth=1)
    for time in range(0, int(UNTIL) + 1, 5):
        ax.plot([left + time] * 2, [1.95, 2.02], color="#666666", linewidth=1)
        write(ax, left + time, 2.2, str(time), 8.5)
    write(ax, left - 0.2, 2.2, "time", 9, ha="right")
    legend = "orange: bytes on their way to the disk"
    if way == "beside":
        waits = plural(steps_done("waits"), "step")
        legend = f"pink: the copy in memory    {legend}    if training waited for the disk: {waits}"
    write(ax, left, 2.7, legend, 9, ha="left")


ELEMENTS = 22


def size(ranks: int) -> int:
    """Elements per part, including padding."""
    return -(-ELEMENTS // ranks)


def pieces(old: int, new: int) -> list[tuple[int, int, int, int]]:
    """(rank, file, start, stop) of each read, in elements of the whole tensor."""
    found = []
    for rank in range(new):
        for file in range(old):
            start = max(rank * size(new), file * size(old))
            stop = min((rank + 1) * size(new), (file + 1) * size(old), ELEMENTS)
            if start < stop:
                found.append((rank, file, start, stop))
    return found


def alt_resharding(old: int, new: int) -> str:
    reads = pieces(old, new)
    most = max(sum(rank == other for other, *_ in reads) for rank in range(new))
    who, how_often = plural(new, "rank"), plural(len(reads), "read")
    return f"""{ELEMENTS} elements in {old} files, read by {who}: {how_often}. A part has
    {size(old)} elements in the files and {size(new)} on the ranks, padding counted, which may be
    anything in a file and is 0 on a rank; a rank reads from at most {plural(most, "file")}."""


@schematic(alt_resharding, 10.0, 2.7, old=([2, 3, 4], 4), new=([1, 2, 3, 4, 6], 3))
def resharding(ax: Axes, old: int, new: int) -> None:
    """A flat tensor saved by n ranks, loaded by m: which rank reads which range of which file."""
    colors = [BLUE, ORANGE, GREEN, PINK, "#7A5C00", "#444444"]
    left, cell, high = 2.2, 0.36, 0.5
    longest = max(old * size(old), new * size(new))
    bare(ax, left + cell * longest + 0.3, 3.0)
    gap = 0.06
    for row, (ranks, word) in enumerate(((old, "file"), (new, "rank"))):
        y = 0.55 + 1.45 * row
        write(ax, left - 0.2, y + high / 2, plural(ranks, word), ha="right")
        for part in range(ranks):
            x = left + cell * part * size(ranks)
            write(ax, x + cell * size(ranks) / 2, y - 0.22, f"{word} {part}", 8.5)
            for place in range(part * size(ranks), (part + 1) * size(ranks)):
                owner = place // size(new)
                inside = place < ELEMENTS
                color = colors[owner] if inside else "white"
                style = {} if inside else DASHED
                words = "" if inside else "?" if word == "file" else "0"
                box(ax, left + cell * place, y, cell - gap, high, color, words, 8, **style)
            wide = cell * size(ranks) - gap
            outline = [x, x + wide, x + wide, x, x], [y, y, y + high, y + high, y]
            ax.plot(*outline, color="#444444", linewidth=1.2)
    for rank, _, start, stop in pieces(old, new):
        x = (left + cell * start, left + cell * stop - gap)
        ax.fill_between(x, 0.55 + high, 2.0, color=lighter(colors[rank], 0.75), linewidth=0)
    legend = "a colour: a new rank    a pale band: a read    dashed: padding, "
    write(ax, left, 2.8, legend + "anything in a file, 0 on a rank", 9, ha="left")


RANKS, STEPS, SLOW, MEET = 4, 2, 2, 0.5
COMPUTE = 2.0  # of a healthy rank; the collective takes MEET
LEFT, TOP, HIGH = 1.5, 0.75, 0.5


def waited(slower: float) -> float:
    """The share of all ranks' time spent waiting."""
    return (RANKS - 1) * COMPUTE * (slower - 1) / (RANKS * (COMPUTE * slower + MEET))


def _bracket(ax: Axes, slower: float) -> None:
    """A bracket over the first step of all ranks."""
    step = COMPUTE * slower + MEET
    ends = [LEFT, LEFT, LEFT + step - 0.04, LEFT + step - 0.04]
    ax.plot(ends, [0.62, 0.5, 0.5, 0.62], color="#444444", linewidth=1.4)
    spared = f"; it would be {COMPUTE + MEET:g} if none were slow" if slower > 1 else ""
    write(ax, LEFT, 0.25, f"a step: {step:g} on every rank{spared}", 9, ha="left")


def alt_waiting_ranks(slower: float) -> str:
    step = COMPUTE * slower + MEET
    late = f"Rank {SLOW} takes {slower:g} times as long" if slower > 1 else "All are equally fast"
    return f"""{late}, and every rank's step is {step:g} long: {100 * waited(slower):.0f}% of all
    time is waiting. By whole steps nobody is slow; before the collective rank {SLOW} computes
    {COMPUTE * slower:g}, the others {COMPUTE:g}."""


@schematic(alt_waiting_ranks, 10.0, 3.4, slower=([1.0, 1.5, 2.0, 3.0], 2.0))
def waiting_ranks(ax: Axes, slower: float) -> None:
    """Steps of ranks joined by a collective: one slow rank delays all equally."""
    step = COMPUTE * slower + MEET
    bare(ax, LEFT + STEPS * (3 * COMPUTE + MEET) + 0.3, 0.7 * RANKS + 1.7)
    _bracket(ax, slower)
    for rank in range(RANKS):
        y = TOP + 0.7 * rank
        write(ax, LEFT - 0.2, y + HIGH / 2, f"rank {rank}", ha="right")
        own = COMPUTE * (slower if rank == SLOW else 1)
        for number in range(STEPS):
            x = LEFT + number * step
            color = ORANGE if rank == SLOW and slower > 1 else BLUE
            box(ax, x, y, own - 0.04, HIGH, color, f"compute {own:g}", 9)
            if (waits := step - MEET - own) > 0.05:
                words = f"waits {waits:g}"
                box(ax, x + own, y, waits - 0.04, HIGH, "white", words, 9, **DASHED)
            box(ax, x + step - MEET, y, MEET - 0.04, HIGH, GREEN, f"{MEET:g}", 8.5)
    legend = "green: the collective, which begins when the last rank has come"
    write(ax, LEFT, TOP + 0.7 * RANKS + 0.2, legend, 9, ha="left")
    slow = f"rank {SLOW} takes {COMPUTE * slower:g}, all others" if slower > 1 else "all ranks take"
    words = f"timed before the collective: {slow} {COMPUTE:g}"
    write(ax, LEFT, TOP + 0.7 * RANKS + 0.6, words, 9, ha="left")


SAVE, RESTART, MINUTES = 2.0, 3.0, 100.0  # minutes
FAILURES = (31.0, 74.0)
IntervalSpan = tuple[float, float, str]  # from, to, what


def phases(interval: float) -> list[IntervalSpan]:
    """Spans: train, lost (trained but not saved), save, restart."""
    now, found = 0.0, list[IntervalSpan]()
    for failure in (*FAILURES, MINUTES):
        while now < failure:
            end = min(now + interval, failure)
            done = min(end + SAVE, failure)
            is_saved = end + SAVE <= failure or failure == MINUTES
            found.append((now, end, "train" if is_saved else "lost"))
            if done > end:
                found.append((end, done, "save"))
            now = max(end, done)
        if failure < MINUTES:
            found.append((failure, failure + RESTART, "restart"))
            now = failure + RESTART
    return found


def minutes(interval: float, what: str) -> float:
    return sum(end - start for start, end, kind in phases(interval) if kind == what)


def alt_checkpoint_intervals(interval: float) -> str:
    kept, saves = minutes(interval, "train"), minutes(interval, "save")
    return f"""A save of {SAVE:g} minutes after every {interval:g}: {kept:.0f} of {MINUTES:g}
    minutes train, {saves:.0f} save, {minutes(interval, "lost"):.0f} are lost,
    {minutes(interval, "restart"):.0f} restart. Two failures, each followed by a restart of
    {RESTART:g} minutes; what was trained since the last save is trained again."""


@schematic(alt_checkpoint_intervals, 10.0, 1.9, interval=([4, 8, 16, 32], 16))
def checkpoint_intervals(ax: Axes, interval: float) -> None:
    """Checkpoint intervals: saves cost time, and a failure loses unsaved work."""
    left, scale, high = 0.2, 0.1, 0.6
    bare(ax, left + scale * MINUTES + 0.2, 1.9)
    colors = {"train": BLUE, "lost": ORANGE, "save": PINK, "restart": "#444444"}
    for start, end, what in phases(interval):
        x, wide = left + scale * start, scale * (end - start)
        words = what if end - start > 6 else ""
        box(ax, x, 0.35, wide - min(0.03, wide / 3), high, colors[what], words, 8)
    for failure in FAILURES:
        write(ax, left + scale * failure, 0.18, "✗", 11, fontweight="bold")
    for place in range(0, int(MINUTES) + 1, 20):
        x = left + scale * place
        ax.plot([x, x], [1.02, 1.09], color="#666666", linewidth=1)
        write(ax, x, 1.25, str(place), 8.5)
    legend = "minutes    blue: trained    pink: a save    orange: trained and lost    ✗ a failure"
    legend += "    dark: restart"
    write(ax, left, 1.65, legend, 9, ha="left")
    ax.plot([left, left + scale * MINUTES], [1.02, 1.02], color="#666666", linewidth=1)
