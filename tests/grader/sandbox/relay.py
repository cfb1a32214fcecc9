"""Carries the messages of graded ranks, and is thus a meter beyond their reach.

It runs on its own thread in the process that launched the ranks, which holds no code of the
submission. Every request of a rank (wire.py) is first noted, in order, then carried out:

    rank 0 ── all_reduce, 32 bytes ──►          ◄── all_reduce, 32 bytes ── rank 1
           ── wait ──────────────────►  relay   ◄── wait ──────────────────
           ◄── the sum ───────────────          ── the sum ────────────────►

An answer is sent only to a rank that waits for it, so a full socket never blocks the relay. A send
completes when its receiver has asked for it, as in gloo: two ranks that both send first deadlock.
The notes record what was sent, independently of the rank's own trace (`differs`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrain.lab.sandbox import plain_data
from minitrain.lab.sandbox.wire import Wire, plain
from minitrain.measure.traffic import Label, Op, Trace, ring_bytes

SPLITS = 8  # of a group, not counted in traces; each sends a word
WORD = 8  # bytes: a color, or the stamp of an emulated clock
PAST = "it talks past the group's meter, or has tampered with group.trace.ops"
REDUCE = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


class Note(NamedTuple):
    """An operation that a rank began, with its number, a wait for one, or a mark's label."""

    kind: str
    number: int = -1
    payload_bytes: int = 0
    sent_bytes: int = 0
    members: tuple[int, ...] = ()
    peer: int | None = None
    label: Label | None = None

    def is_of(self, op: Op) -> bool:
        mine = (self.kind, self.payload_bytes, self.sent_bytes, self.members, self.peer)
        return mine == (op.kind, op.payload_bytes, op.sent_bytes, tuple(op.members), op.peer)


class Relay:
    """A `Carrier` of one launch; `notes[rank]`: the operations that rank began."""

    def __init__(self, ranks: int) -> None:
        pairs = [Pipe() for _ in range(ranks)]
        self.ours, self.theirs = [a for a, _ in pairs], [b for _, b in pairs]
        self.notes: list[list[Note]] = [[] for _ in range(ranks)]
        self.counts = [0] * ranks
        self.waiting: dict[int, int] = {}  # rank -> the operation that it waits for
        self.results: dict[tuple[int, int], Tensor | None] = {}  # by rank and number
        self.mail: dict[tuple, tuple[deque, deque]] = defaultdict(lambda: (deque(), deque()))
        self.turns: dict[tuple[int, str], int] = defaultdict(int)  # collectives so far
        self.meetings: dict[tuple[str, int], dict[int, tuple[int, dict]]] = defaultdict(dict)
        self.thread = Thread(target=self._serve, daemon=True)

    def end(self, rank: int) -> Wire:
        """The wire for the rank's process, which keeps no other part of the relay."""
        for number, connection in enumerate([*self.ours, *self.theirs]):
            if number != len(self.ours) + rank:
                connection.close()
        return Wire(self.theirs[rank], range(len(self.ours)))

    def start(self) -> None:
        for connection in self.theirs:
            connection.close()
        self.thread.start()

    def finish(self) -> None:
        """Notes the remaining messages, once the ranks have exited."""
        self.thread.join()
        for connection in self.ours:
            connection.close()

    def _serve(self) -> None:
        open_ends = {connection: rank for rank, connection in enumerate(self.ours)}
        while open_ends:
            for connection in wait(list(open_ends)):
                try:
                    message = connection.recv_bytes()  # type: ignore[union-attr]
                    self._take(open_ends[connection], plain_data.unpack(message))  # type: ignore[index]
                except (EOFError, OSError):
                    del open_ends[connection]  # type: ignore[arg-type]
                except Exception:  # forged message: the rank waits until the launch is ended
                    self.notes[open_ends[connection]].append(Note("no message", payload_bytes=-1))  # type: ignore[index]

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "poll":
            done = (rank, message["number"]) in self.results
            self.ours[rank].send_bytes(plain_data.pack(done))
        elif kind == "wait":
            self.notes[rank].append(Note("wait", message["number"]))
            self.waiting[rank] = message["number"]
            self._answer(rank)
        elif kind == "mark":
            self.notes[rank].append(Note("mark", label=message["label"]))
        else:
            number, self.counts[rank] = self.counts[rank], self.counts[rank] + 1
            self.notes[rank].append(note_of(rank, number, message))
            self._carry(rank, number, message)

    def _carry(self, rank: int, number: int, message: dict[str, Any]) -> None:
        group, members, kind = message["group"], message["members"], message["kind"]
        if kind in ("send", "recv"):
            pair = (rank, members[message["peer"]])
            place = (group, message["tag"], *(pair if kind == "send" else pair[::-1]))
            self.mail[place][kind == "recv"].append((rank, number, message))
            self._deliver(*self.mail[place])
            return
        turn, self.turns[rank, group] = self.turns[rank, group], self.turns[rank, group] + 1
        meeting = self.meetings[group, turn]
        meeting[rank] = (number, message)
        if len(meeting) == len(members):
            del self.meetings[group, turn]
            parts = carried(kind, [meeting[member][1] for member in members])
            for member, part in zip(members, parts):
                self._finish(member, *meeting[member], part)

    def _deliver(self, sends: deque, recvs: deque) -> None:
        while sends and recvs:
            (sender, number, message), receiver = sends.popleft(), recvs.popleft()
            self._finish(*receiver, message["data"])
            self._finish(sender, number, message, None)

    def _finish(self, rank: int, number: int, asked: dict[str, Any], data: Tensor | None) -> None:
        if asked["expected"] != (0 if data is None else data.nbytes):
            raise ValueError("other bytes than were asked for")
        self.results[rank, number] = data
        self._answer(rank)

    def _answer(self, rank: int) -> None:
        place = (rank, self.waiting.get(rank, -1))
        if place in self.results:
            del self.waiting[rank]
            self.ours[rank].send_bytes(plain_data.pack(self.results.pop(place)))


def carried(kind: str, asked: Sequence[dict[str, Any]]) -> Sequence[Tensor | None]:
    """Each member's result, from all members' requests, in member order."""
    if {message["kind"] for message in asked} != {kind}:
        raise ValueError("one group's members came with different collectives")
    data, count = [message["data"] for message in asked], len(asked)
    if kind == "barrier":
        return [None] * count
    if kind == "broadcast":
        return [data[asked[0]["root"]]] * count
    if kind == "all_gather":
        return [torch.cat([part.view(-1) for part in data])] * count
    if kind == "all_to_all":
        pieces = [part.split(message["splits"]) for part, message in zip(data, asked)]
        return [torch.cat([mine[rank] for mine in pieces]) for rank in range(count)]
    total = data[0]
    for part in data[1:]:
        total = REDUCE[asked[0]["how"]](total, part)
    return [total] * count if kind == "all_reduce" else total.view(-1).chunk(count)


def note_of(rank: int, number: int, asked: dict[str, Any]) -> Note:
    """The trace's entry by `Group`'s own rules, from the received bytes (measure/traffic.py)."""
    kind, members, data = asked["kind"], tuple(asked["members"]), asked["data"]
    size, place = len(members), members.index(rank)
    given = 0 if data is None else data.nbytes
    payload, sent = given, given
    if kind == "recv":
        payload, sent = asked["expected"], 0
    elif kind == "all_to_all":
        sent -= asked["splits"][place] * (given // max(1, len(data)))
    elif kind == "broadcast":
        sent = 0 if place == (asked["root"] - 1) % size else given
    elif kind not in ("send", "barrier"):
        payload = given * size if kind == "all_gather" else given
        sent = ring_bytes(kind, payload, size)
    return Note(kind, number, payload, sent, members, asked.get("peer"))


def differs(notes: Sequence[Note], trace: Trace) -> str | None:
    """The difference between a rank's own trace and the relay's: in operations, or in the order of
    times.

    Times are the rank's own, but must not precede those of earlier notes. Words not counted in
    traces are internal to a group: a split's, or a clock's stamp.
    """
    ops, marks, open_ops = deque(trace.ops), deque(trace.marks), {}
    latest, words = float("-inf"), SPLITS + (len(trace.ops) if trace.emulated else 0)
    for note in notes:
        if note.kind == "mark":
            label, when = marks.popleft() if marks else (None, None)
            if when is not None and plain(label) != note.label:
                return f"it has tampered with group.trace.marks ({note.label!r} was set)"
        elif note.kind == "wait":
            op = open_ops.pop(note.number, None)
            when = latest if op is None else op.waited
        elif ops and note.is_of(ops[0]):
            op = open_ops[note.number] = ops.popleft()
            when = op.issued
        elif words and 0 <= note.payload_bytes <= WORD * len(note.members):
            words, when = words - 1, latest
        else:
            return f"{PAST} ({note.kind} of {note.payload_bytes} bytes)"
        if not isinstance(when, (int, float)) or not when >= latest:
            return "it has tampered with the times of group.trace"
        latest = when
    if ops:
        return f"{PAST} ({ops[0].kind} of {ops[0].payload_bytes} bytes, which was not sent)"
    return "it has tampered with group.trace.marks" if marks else None
