"""A message and what it costs: who waits for whom, and why many small ones take longer than one.

`send_and_recv`: a send and a recv meet, or wait. `message_cost`: seconds = α + bytes · β, with the
α and β of 25 Gb/s Ethernet that `network/fabric.py` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import IDLE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.network.fabric import ETHERNET_25G
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, END = 2.0, 11.0  # where time begins, how far it is drawn
SEND_AT, MESSAGE = 2, 1.2  # when rank 0 calls send, how long its message travels
WORK = lighter(BLUE, 0.55)
BLANK = {"facecolor": "white", "linewidth": 0}  # behind words on hatches


def waits(recv_at: int) -> tuple[int, int]:
    """How long rank 0 waits in send, and rank 1 in recv, before the message sets out."""
    return max(0, recv_at - SEND_AT), max(0, SEND_AT - recv_at)


def draw_send_and_recv(ax: Axes, recv_at: int) -> None:
    bare(ax, LEFT + END + 0.2, 4.4)
    meet = max(SEND_AT, recv_at)
    say(ax, LEFT, 0.2, "one sends, the other receives: they meet", ha="left", fontweight="bold")
    for rank, (called, word) in enumerate(((SEND_AT, "send"), (recv_at, "recv"))):
        y = 0.45 + 0.95 * rank
        say(ax, LEFT - 0.2, y + 0.25, f"rank {rank}", ha="right")
        box(ax, LEFT, y, called - 0.05, 0.5, WORK, "works", 8.5)
        idle(ax, called, meet, y)
        if meet > called:
            words = f"waits {meet - called} in {word}"
            say(ax, LEFT + (called + meet) / 2, y + 0.25, words, 8.5, bbox=BLANK)
        box(ax, LEFT + meet, y, MESSAGE - 0.05, 0.5, ORANGE, word, 8.5)
        box(ax, LEFT + meet + MESSAGE, y, END - meet - MESSAGE, 0.5, WORK, "works on", 8.5)
    say(ax, LEFT - 0.2, 2.1, "time", 8.5, ha="right")
    for time in range(int(END) + 1):
        say(ax, LEFT + time, 2.1, str(time), 8.5)
    middle = LEFT + meet + MESSAGE / 2
    arrow(ax, (middle, 0.97), (middle, 1.38), ORANGE)
    words = "both send first: neither receives, a deadlock"
    say(ax, LEFT, 2.7, words, ha="left", fontweight="bold")
    for rank, called in enumerate((SEND_AT, recv_at)):
        y = 2.95 + 0.75 * rank
        say(ax, LEFT - 0.2, y + 0.25, f"rank {rank}", ha="right")
        box(ax, LEFT, y, called - 0.05, 0.5, WORK, "works", 8.5)
        idle(ax, called, END, y)
        say(ax, LEFT + END - 2.0, y + 0.25, "waits in send, for ever", 8.5, bbox=BLANK)


def idle(ax: Axes, start: float, end: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    if end > start:
        ax.add_patch(Rectangle((LEFT + start, y), end - start - 0.05, 0.5, **IDLE))


def say_send_and_recv(recv_at: int) -> str:
    sender, receiver = waits(recv_at)
    who = "neither waits"
    if sender or receiver:
        late, other = ("rank 1", "rank 0") if sender else ("rank 0", "rank 1")
        who = f"{late} is late, and {other} waits {plural(sender or receiver, 'unit')} of time"
    return (
        f"A send and a recv meet: {who}. Rank 0 sends at {SEND_AT}, rank 1 receives at {recv_at}; "
        "the message travels when both are there, and both work on when it has arrived. Below, "
        "both ranks send first: each waits for the other to receive, for ever, a deadlock."
    )


COUNTS = (1, 2, 4, 8)  # into how many messages the same bytes are cut


def microseconds(messages: int, kilobytes: int) -> tuple[float, float]:
    """(all latencies, all bytes) of these kilobytes in that many messages, one after another."""
    return messages * ETHERNET_25G.alpha * 1e6, kilobytes * 1e3 * ETHERNET_25G.beta * 1e6


def draw_message_cost(ax: Axes, kilobytes: int) -> None:
    longest = sum(microseconds(COUNTS[-1], kilobytes))
    scale = 9.0 / longest
    bare(ax, LEFT + 10.6, 0.6 + 0.75 * len(COUNTS))
    alpha, beta = microseconds(1, kilobytes)
    speed = f"{beta:.0f} µs in each row, at 1/β = {1e-9 / ETHERNET_25G.beta:.2f} GB/s"
    for color, x, words in (
        (ORANGE, 0.0, f"latency α of a message: {alpha:.0f} µs"),
        (BLUE, 4.2, f"bytes · β: {speed}"),
    ):
        box(ax, LEFT + x, 0.1, 0.3, 0.25, color)
        say(ax, LEFT + x + 0.45, 0.23, words, ha="left")
    for row, count in enumerate(COUNTS):
        y, x = 0.6 + 0.75 * row, LEFT
        latency, transfer = (scale * part / count for part in microseconds(count, kilobytes))
        say(ax, LEFT - 0.2, y + 0.25, plural(count, "message"), ha="right")
        for _ in range(count):
            box(ax, x, y, latency, 0.5, ORANGE)
            box(ax, x + latency, y, transfer, 0.5, BLUE)
            x += latency + transfer
        total = sum(microseconds(count, kilobytes))
        say(ax, x + 0.15, y + 0.25, f"{total:.0f} µs", ha="left", fontweight="bold")


def say_message_cost(kilobytes: int) -> str:
    found = [f"{plural(n, 'message')} {sum(microseconds(n, kilobytes)):.0f} µs" for n in COUNTS]
    return (
        f"{kilobytes:,} kB on 25 Gb/s Ethernet, in one message and in more (computed). "
        f"{', '.join(found)}: every message pays the latency of "
        f"{ETHERNET_25G.alpha * 1e6:.0f} µs, the bytes take as long however they are cut, at "
        f"{1e-9 / ETHERNET_25G.beta:.2f} GB/s."
    )


send_and_recv = Schematic(draw_send_and_recv, say_send_and_recv, (9.5, 3.2), {"recv_at": (1, 7, 5)})
message_cost = Schematic(
    draw_message_cost, say_message_cost, (9.5, 2.9), {"kilobytes": ([64, 256, 1024], 256)}
)
