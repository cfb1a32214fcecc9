"""Schematics of lab e00, ranks and collectives."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE, PINK, lighter
from minitrain.lab.drawing.shapes import IDLE, arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.network.fabric import ETHERNET_25G
from minitrain.words import plural

LEFT, END = 2.0, 11.0  # start and end of the time axis
SEND_AT, MESSAGE = 2, 1.2  # when rank 0 calls send, and its message's travel time


def waits(recv_at: int) -> tuple[int, int]:
    """The time that rank 0 waits in send, and rank 1 in recv, before the transfer starts."""
    return max(0, recv_at - SEND_AT), max(0, SEND_AT - recv_at)


def idle(ax: Axes, start: float, end: float, y: float) -> None:
    if end > start:
        ax.add_patch(Rectangle((LEFT + start, y), end - start - 0.05, 0.5, **IDLE))


def alt_send_and_recv(recv_at: int) -> str:
    sender, receiver = waits(recv_at)
    who = "neither waits"
    if sender or receiver:
        late, other = ("rank 1", "rank 0") if sender else ("rank 0", "rank 1")
        who = f"{late} is late, and {other} waits {plural(sender or receiver, 'unit')} of time"
    return f"""A send and a recv meet: {who}. Rank 0 sends at {SEND_AT}, rank 1 receives at
    {recv_at}; the message travels when both are there, and both work on when it has arrived. Below,
    both ranks send first: each waits for the other to receive, for ever, a deadlock."""


@schematic(alt_send_and_recv, 9.5, 3.2, recv_at=(1, 7, 5))
def send_and_recv(ax: Axes, recv_at: int) -> None:
    """The cost of a message: who waits for whom, and why many small messages take longer than one.

    `send_and_recv`: a send and a recv meet, or wait. `message_cost`: seconds = α + bytes · β, with
    α and β of 25 Gb/s Ethernet from `network/fabric.py`.
    """
    work = lighter(BLUE, 0.55)
    blank = {"facecolor": "white", "linewidth": 0}  # text background on hatches
    bare(ax, LEFT + END + 0.2, 4.4)
    meet = max(SEND_AT, recv_at)
    write(ax, LEFT, 0.2, "one sends, the other receives: they meet", ha="left", fontweight="bold")
    for rank, (called, word) in enumerate(((SEND_AT, "send"), (recv_at, "recv"))):
        y = 0.45 + 0.95 * rank
        write(ax, LEFT - 0.2, y + 0.25, f"rank {rank}", ha="right")
        box(ax, LEFT, y, called - 0.05, 0.5, work, "works", 8.5)
        idle(ax, called, meet, y)
        if meet > called:
            words = f"waits {meet - called} in {word}"
            write(ax, LEFT + (called + meet) / 2, y + 0.25, words, 8.5, bbox=blank)
        box(ax, LEFT + meet, y, MESSAGE - 0.05, 0.5, ORANGE, word, 8.5)
        box(ax, LEFT + meet + MESSAGE, y, END - meet - MESSAGE, 0.5, work, "works on", 8.5)
    write(ax, LEFT - 0.2, 2.1, "time", 8.5, ha="right")
    for time in range(int(END) + 1):
        write(ax, LEFT + time, 2.1, str(time), 8.5)
    middle = LEFT + meet + MESSAGE / 2
    arrow(ax, (middle, 0.97), (middle, 1.38), ORANGE)
    words = "both send first: neither receives, a deadlock"
    write(ax, LEFT, 2.7, words, ha="left", fontweight="bold")
    for rank, called in enumerate((SEND_AT, recv_at)):
        y = 2.95 + 0.75 * rank
        write(ax, LEFT - 0.2, y + 0.25, f"rank {rank}", ha="right")
        box(ax, LEFT, y, called - 0.05, 0.5, work, "works", 8.5)
        idle(ax, called, END, y)
        write(ax, LEFT + END - 2.0, y + 0.25, "waits in send, for ever", 8.5, bbox=blank)


COUNTS = (1, 2, 4, 8)  # numbers of messages for the same bytes


def microseconds(messages: int, kilobytes: int) -> tuple[float, float]:
    """(total latency, total transfer time) of the kilobytes in sequential messages."""
    return messages * ETHERNET_25G.alpha * 1e6, kilobytes * 1e3 * ETHERNET_25G.beta * 1e6


def alt_message_cost(kilobytes: int) -> str:
    found = [f"{plural(n, 'message')} {sum(microseconds(n, kilobytes)):.0f} µs" for n in COUNTS]
    return f"""{kilobytes:,} kB on 25 Gb/s Ethernet, in one message and in more (computed).
    {", ".join(found)}: every message pays the latency of {ETHERNET_25G.alpha * 1e6:.0f} µs, the
    bytes take as long however they are cut, at {1e-9 / ETHERNET_25G.beta:.2f} GB/s."""


@schematic(alt_message_cost, 9.5, 2.9, kilobytes=([64, 256, 1024], 256))
def message_cost(ax: Axes, kilobytes: int) -> None:
    scale = 9.0 / sum(microseconds(COUNTS[-1], kilobytes))
    bare(ax, LEFT + 10.6, 0.6 + 0.75 * len(COUNTS))
    alpha, beta = microseconds(1, kilobytes)
    speed = f"{beta:.0f} µs in each row, at 1/β = {1e-9 / ETHERNET_25G.beta:.2f} GB/s"
    for color, x, words in (
        (ORANGE, 0.0, f"latency α of a message: {alpha:.0f} µs"),
        (BLUE, 4.2, f"bytes · β: {speed}"),
    ):
        box(ax, LEFT + x, 0.1, 0.3, 0.25, color)
        write(ax, LEFT + x + 0.45, 0.23, words, ha="left")
    for row, count in enumerate(COUNTS):
        y, x = 0.6 + 0.75 * row, LEFT
        latency, transfer = (scale * part / count for part in microseconds(count, kilobytes))
        write(ax, LEFT - 0.2, y + 0.25, plural(count, "message"), ha="right")
        for _ in range(count):
            box(ax, x, y, latency, 0.5, ORANGE)
            box(ax, x + latency, y, transfer, 0.5, BLUE)
            x += latency + transfer
        total = sum(microseconds(count, kilobytes))
        write(ax, x + 0.15, y + 0.25, f"{total:.0f} µs", ha="left", fontweight="bold")


RANKS = 4
Held = list[list[str]]  # [rank][chunk]: "b2" is chunk 2 of rank 1's data, "" nothing yet
EMPTY: Held = [[""] * RANKS for _ in range(RANKS)]
OWN: Held = [[f"{'abcd'[rank]}{chunk}" for chunk in range(RANKS)] for rank in range(RANKS)]


def diagonal(held: Held) -> Held:
    """Chunk r on rank r, and nothing else."""
    return [[words if c == r else "" for c, words in enumerate(row)] for r, row in enumerate(held)]


def states(kind: str) -> tuple[Held, Held]:
    """The chunks on each rank before and after the collective."""
    everywhere = [[f"Σ{chunk}" for chunk in range(RANKS)]] * RANKS
    return {
        "broadcast": ([OWN[0], *EMPTY[1:]], [OWN[0]] * RANKS),
        "reduce-scatter": (OWN, diagonal(everywhere)),
        "all-gather": (diagonal(OWN), [[OWN[r][r] for r in range(RANKS)]] * RANKS),
        "all-reduce": (OWN, everywhere),
        "all-to-all": (OWN, [list(column) for column in zip(*OWN)]),
    }[kind]


def alt_collectives() -> str:
    return """Five collectives on four ranks, before and after. Broadcast: rank 0's four chunks end
    on every rank. Reduce-scatter: each rank has four chunks, and rank r ends with the sum of all
    ranks' chunk r. All-gather: rank r has chunk r, and every rank ends with all four. All-reduce:
    every rank ends with the sum of every chunk. All-to-all: rank r's chunk j becomes rank j's chunk
    r, as rows and columns change places. A letter names the rank whose data it is, a for 0 to d for
    3; Σ is the sum over ranks."""


@schematic(alt_collectives, 9.8, 4.0)
def collectives(ax: Axes) -> None:
    """Five collectives, before and after: a column is a rank, a row a chunk of its tensor.

    A box shows the source rank (a, b, c, d for ranks 0 to 3) and the chunk; Σ is the sum over
    ranks.
    """
    colors = {"a": BLUE, "b": ORANGE, "c": GREEN, "d": PINK, "Σ": INK, "": PALE}
    left, wide, high, gap = 0.8, 0.5, 0.4, 0.35  # of a box, and between two collectives
    before, after = 0.7, 2.75  # where their first rows are
    kinds = ("broadcast", "reduce-scatter", "all-gather", "all-reduce", "all-to-all")
    each = RANKS * wide + gap
    bare(ax, left + each * len(kinds), after + RANKS * high + 0.5)
    for y, words in ((before, "before"), (after, "after")):
        write(ax, left - 0.1, y - 0.17, "rank", 8, ha="right")
        write(ax, left - 0.1, y + RANKS * high / 2, words, ha="right", fontweight="bold")
    for number, kind in enumerate(kinds):
        x = left + each * number
        write(ax, x + RANKS * wide / 2, 0.15, kind, 10, fontweight="bold")
        for y, held in zip((before, after), states(kind)):
            for rank, row in enumerate(held):
                write(ax, x + wide * (rank + 0.5), y - 0.17, str(rank), 8)
                for chunk, words in enumerate(row):
                    place = (x + wide * rank, y + high * chunk, wide - 0.05, high - 0.05)
                    box(ax, *place, colors[words[:1]], words)
    legend = "a column: one rank's chunks    letter and colour: whose data, a of rank 0 to d of 3"
    legend += "    Σ0 = a0 + b0 + c0 + d0    grey: nothing"
    write(ax, left, after + RANKS * high + 0.3, legend, ha="left")


def rounds(ranks: int) -> int:
    """ceil(log2 N)."""
    return (ranks - 1).bit_length()


def alt_tree_broadcast(ranks: int) -> str:
    fewer = f", not {ranks - 1}" if rounds(ranks) < ranks - 1 else ""
    return f"""A tree broadcasts to {ranks} ranks in {plural(rounds(ranks), "round")}{fewer}. In
    each round every rank that has the tensor (blue) sends it to one that has not, so their number
    doubles: 1, 2, 4 and so on, until all have it."""


@schematic(alt_tree_broadcast, 9.5, 4.2, ranks=(2, 8, 8))
def tree_broadcast(ax: Axes, ranks: int) -> None:
    """A broadcast along a binomial tree: a row is a round; each doubles the number of ranks that
    have the tensor."""
    across, high, wide = 1.25, 1.1, 0.8
    bare(ax, 1.6 + across * ranks, high * (rounds(ranks) + 1))
    for number in range(rounds(ranks) + 1):
        y, have = high * number + 0.15, min(ranks, 2**number)
        label = "at first" if number == 0 else f"after round {number}"
        write(ax, 1.4, y + 0.22, label, ha="right")
        for rank in range(ranks):
            x = 1.6 + across * rank
            box(ax, x, y, wide, 0.44, BLUE if rank < have else PALE, str(rank))
            if rank < have and rank + have < ranks:
                target = (x + across * have + wide / 2, y + high)
                arrow(ax, (x + wide / 2, y + 0.44), target, ORANGE)
    legend = "blue: has the tensor    arrow: sends it"
    write(ax, 1.6, high * (rounds(ranks) + 1) - 0.2, legend, ha="left")


HALF, WHOLE = RANKS - 1, 2 * (RANKS - 1)  # messages of a reduce-scatter, and of both
ACROSS, HIGH = 2.4, 0.8  # column spacing, row height
FOOT = HIGH * RANKS + 0.75  # the legend's line


def parts(step: int) -> list[list[list[int]]]:
    """parts[rank][chunk]: ranks summed in it after each rank has sent `step` messages."""
    held = [[[rank] for _ in range(RANKS)] for rank in range(RANKS)]
    for done in range(step):
        before = [[list(chunk) for chunk in row] for row in held]
        for rank in range(RANKS):
            left, chunk = (rank - 1) % RANKS, moving(done, rank - 1)
            own = before[rank][chunk] if done < HALF else []
            held[rank][chunk] = before[left][chunk] + own
    return held


def moving(step: int, rank: int) -> int:
    """The chunk that a rank sends in its message number `step`, counted from 0."""
    return (rank - 1 - step) % RANKS


def legend(step: int, is_complete: bool = False) -> str:
    """The legend; is_complete: green boxes are present from the start."""
    words = "in a box: the ranks whose parts are summed"
    words += "    green: all four" * (is_complete or step == HALF)
    return words + "    orange: leaves next" * (step < HALF)


def _draw(ax: Axes, step: int, held: list[list[list[int]]], last: int) -> None:
    wide = 1.5  # of a box
    bare(ax, ACROSS * RANKS + 0.9, FOOT + 0.2)
    for rank in range(RANKS):
        x = 0.9 + ACROSS * rank
        write(ax, x + wide / 2, 0.3, f"rank {rank}", fontweight="bold")
        for chunk in range(RANKS):
            y, own = 0.6 + HIGH * chunk, held[rank][chunk]
            color = GREEN if len(own) == RANKS else lighter(BLUE, 1 - len(own) / RANKS)
            color = PALE if len(own) <= 1 else color
            leaves = step < last and chunk == moving(step, rank)
            edge = {"edgecolor": ORANGE, "linewidth": 2} if leaves else {}
            box(ax, x, y, wide, HIGH - 0.15, color, " + ".join(map(str, own)), **edge)
            if leaves:
                middle = y + (HIGH - 0.15) / 2
                arrow(ax, (x + wide, middle), (x + ACROSS, middle), ORANGE)
                if rank == RANKS - 1:
                    write(ax, x + ACROSS - 0.1, middle - 0.17, "to rank 0", 8.5, ha="right")
    for chunk in range(RANKS):
        write(ax, 0.75, 0.6 + HIGH * chunk + (HIGH - 0.15) / 2, f"chunk {chunk}", ha="right")


def alt_ring_reduce_scatter(step: int) -> str:
    over = "Reduce-scatter done: rank r holds chunk r of the sum" if step == HALF else ""
    return _said("Reduce-scatter", step, step, over)


@schematic(alt_ring_reduce_scatter, 9.5, 3.8, step=(0, HALF, 0))
def ring_reduce_scatter(ax: Axes, step: int) -> None:
    """The ring: a column is a rank, a row a chunk, and a box lists the ranks summed so far.

    Chunk c starts at rank c + 1 and goes once around to the right; each rank adds its part, until
    rank c holds the sum: the reduce-scatter. The all-gather sends complete chunks once around the
    same way (Patarasuk & Yuan 2009).
    """
    _draw(ax, step, parts(step), HALF)
    write(ax, 0.9, FOOT, legend(step), ha="left")


def alt_ring_all_gather(step: int) -> str:
    over = "All-gather done: every rank holds every chunk of the sum" if step == HALF else ""
    return _said("All-gather", step, HALF + step, over)


@schematic(alt_ring_all_gather, 9.5, 3.8, step=(0, HALF, 0))
def ring_all_gather(ax: Axes, step: int) -> None:
    """The second half: only complete sums are drawn; its step 0 is the ring's fourth message."""
    sent = HALF + step
    held = [[chunk if len(chunk) == RANKS else [] for chunk in row] for row in parts(sent)]
    _draw(ax, sent, held, WHOLE)
    more = "" if step == HALF else "    grey: no whole sum yet"
    write(ax, 0.9, FOOT, legend(step, is_complete=True) + more, ha="left")


def _said(phase: str, step: int, sent_before: int, over: str) -> str:
    """sent_before: a rank's messages since the reduce-scatter began."""
    complete = sum(len(chunk) == RANKS for row in parts(sent_before) for chunk in row)
    done = f"{step} of {HALF} messages sent by each rank"
    found = f"{complete} of {RANKS * RANKS} boxes hold the sum over all {RANKS} ranks"
    if over:
        return f"{over}. {done}; {found}."
    sent = ", ".join(f"rank {r} sends chunk {moving(sent_before, r)}" for r in range(RANKS))
    title = f"{phase}, step {step}: message {step + 1} of {HALF} goes to the right"
    return f"{title}. {done}; {found}. Next, {sent}."


def summed(rank: int, swaps: int) -> tuple[int, int]:
    """The first and the last rank in this rank's sum."""
    first = rank >> swaps << swaps
    return first, first + 2**swaps - 1


def alt_recursive_doubling(ranks: int) -> str:
    swaps = (ranks - 1).bit_length()
    return f"""All-reduce by recursive doubling, {ranks} ranks: {plural(swaps, "message")} from
    each. In a box stand the ranks whose tensors are summed. In each swap two partners send each
    other all that they have, the whole tensor: first neighbours, then ranks two apart, then
    four."""


@schematic(alt_recursive_doubling, 9.5, 4.0, ranks=([2, 4, 8], 8))
def recursive_doubling(ax: Axes, ranks: int) -> None:
    """Recursive doubling: partners at distance 1, 2, 4 … exchange all they have, until every rank
    has everything."""
    left, across, wide, high = 2.0, 1.25, 1.0, 1.1
    swaps = (ranks - 1).bit_length()
    bare(ax, left + across * ranks, high * (swaps + 1) + 0.2)
    key = (
        "in a box: the ranks whose tensors are summed    arrow: the whole tensor, added on arrival"
    )
    write(ax, left, high * (swaps + 1), key, ha="left")
    for done in range(swaps + 1):
        y = high * done + 0.15
        write(ax, left - 0.2, y + 0.22, f"after swap {done}" if done else "at first", ha="right")
        for rank in range(ranks):
            first, last = summed(rank, done)
            shade = PALE if done == 0 else lighter(BLUE, 1 - 2**done / ranks)
            words = f"Σ {first}–{last}" if last > first else str(first)
            x = left + across * rank
            box(ax, x, y, wide, 0.44, GREEN if 2**done == ranks else shade, words)
            if done < swaps:
                target = left + across * (rank ^ 2**done) + wide / 2
                arrow(ax, (x + wide / 2, y + 0.44), (target, y + high), ORANGE)
