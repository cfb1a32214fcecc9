"""Flight recorder: a memory-mapped page that all ranks of one machine share, so that a hang
explains itself (torch's own, TORCH_NCCL_TRACE_BUFFER_SIZE, keeps the same for NCCL).

Each rank records what it starts and what it waits for in its own part, and reads the others' parts.
So the rank that comes second to a collective sees *before* it starts that the first came with
another one (a mismatch), and the launching process sees which ranks wait for each other (a
deadlock) without asking: a killed rank has left its last record. 4 µs an operation of 4 ranks;
TORCH_DISTRIBUTED_DEBUG=DETAIL makes each all-reduce take 1.5 to 2.4 times as long.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from functools import lru_cache
from typing import NamedTuple

import numpy as np

CHANNELS, HISTORY = 128, 32  # of a rank; the last operations of a channel that are kept
PLACE = 256  # bytes of a "file:line"
STARTING, COMPUTING, WAITING = range(3)

CHANNEL = np.dtype(
    [
        ("counterpart", "u8"),  # the id of the channel where the other side records its part
        ("needs", "u8"),  # bit r: rank r must have recorded its part before this one can end
        ("recorded", "u8"),  # how many operations so far; the n-th lies at n % HISTORY
        ("key", "S64", HISTORY),  # what must agree
        ("words", "S160", HISTORY),  # what a person reads
    ],
    align=True,
)
PART = np.dtype(
    [
        ("state", "u1"),
        ("provable", "?"),
        ("row", "i4"),  # the channel that it waits in, and which of its operations
        ("number", "u8"),
        ("version", "u8"),  # counts the changes of state
        ("where", f"S{PLACE}"),  # "file:line" of the last wait
        ("seen", f"S{PLACE}"),  # "file:line" at the last glance of the rank's watch
        ("ids", "u8", CHANNELS),
        ("channels", CHANNEL, CHANNELS),
    ],
    align=True,
)


class Channel(NamedTuple):
    """A sequence of operations of one kind: the n-th here belongs to the n-th in `counterpart`."""

    id: int
    counterpart: int
    needs: tuple[int, ...]  # ranks that must come before an operation here can end


class Entry(NamedTuple):
    """One recorded operation: the `number`-th of the rank's channel in `row`; -1: not recorded."""

    row: int
    number: int


class Status(NamedTuple):
    """The current activity of one rank, read from its page."""

    state: int
    provable: bool
    entry: Entry
    version: int
    where: str
    seen: str


class FlightRecorder:
    """One part a rank in `memory`, of which `rank` writes its own."""

    def __init__(self, memory: mmap.mmap, rank: int = 0, sees_others: bool = True) -> None:
        self.parts = np.frombuffer(memory, PART)  # (ranks,)
        channels = self.parts["channels"]
        self.counts = channels["recorded"]  # (ranks, CHANNELS)
        self.keys, self.texts = channels["key"], channels["words"]  # (ranks, CHANNELS, HISTORY)
        self.rank, self.sees_others = rank, sees_others
        self.rows: dict[tuple[int, int], int] = {}  # (rank, channel id) -> row, once known
        self.full, self.version = False, 0

    @staticmethod
    def create(path: str | os.PathLike, ranks: int) -> FlightRecorder:
        """An empty one; the file is sparse, a rank that uses few channels touches few pages."""
        with open(path, "wb") as file:
            os.truncate(file.fileno(), ranks * PART.itemsize)
        return FlightRecorder.open(path)

    @staticmethod
    def open(path: str | os.PathLike, rank: int = 0) -> FlightRecorder:
        """The one that all ranks share: in a rank, or in the process that launched them."""
        with open(path, "r+b") as file:
            return FlightRecorder(mmap.mmap(file.fileno(), 0), rank)

    @staticmethod
    def alone() -> FlightRecorder:
        """For a rank that shares no memory with the others: it knows what itself waits in."""
        return FlightRecorder(mmap.mmap(-1, PART.itemsize), sees_others=False)

    @property
    def ranks(self) -> int:
        return len(self.parts)

    def close(self) -> None:
        """Gives the memory back, and the file's descriptor with it."""
        del self.parts, self.counts, self.keys, self.texts

    # ---- a rank writes its own part ----

    def record(self, channel: Channel, key: str, words: str) -> tuple[Entry, int | None]:
        """Records this rank's next operation in `channel`, before it starts.

        Returns its entry, and the rank that has come to the same place with another key, if any.
        """
        if not self.sees_others:
            channel = channel._replace(needs=())
        row = self._own_row(channel)
        if row is None:
            return Entry(-1, 0), None
        mine, number = key.encode(), int(self.counts[self.rank, row])
        self.keys[self.rank, row, number % HISTORY] = mine
        self.texts[self.rank, row, number % HISTORY] = words.encode()
        self.counts[self.rank, row] = number + 1  # last: a reader of it finds the rest
        return Entry(row, number), self._first_that_differs(channel, number, mine)

    def wait(self, entry: Entry, where: str, provable: bool) -> None:
        """Records that this rank waits for `entry`, at the line `where`."""
        parts, self.version = self.parts, self.version + 1
        parts["where"][self.rank] = where.encode()[-PLACE:]
        parts["row"][self.rank], parts["number"][self.rank] = entry
        parts["provable"][self.rank] = provable and entry.row >= 0
        parts["version"][self.rank] = self.version
        parts["state"][self.rank] = WAITING  # last: a reader of it finds the rest

    def compute(self) -> None:
        """Records that this rank computes."""
        parts, self.version = self.parts, self.version + 1
        parts["state"][self.rank] = COMPUTING  # first: no one takes the rest for a wait
        parts["version"][self.rank] = self.version
        parts["row"][self.rank] = -1

    def glance(self, where: str) -> None:
        """Notes where the rank's own code is, for the case that it dies there."""
        self.parts["seen"][self.rank] = where.encode()[-PLACE:]

    def _own_row(self, channel: Channel) -> int | None:
        row = self.rows.get((self.rank, channel.id))
        if row is not None or self.full:
            return row
        row = sum(rank == self.rank for rank, _ in self.rows)
        if row == CHANNELS:
            self.full = True
            return None
        channels = self.parts["channels"]
        channels["counterpart"][self.rank, row] = channel.counterpart
        channels["needs"][self.rank, row] = sum(1 << rank for rank in channel.needs)
        self.parts["ids"][self.rank, row] = channel.id
        self.rows[self.rank, channel.id] = row
        return row

    # ---- anyone reads ----

    def status(self, rank: int) -> Status:
        part = self.parts[rank]
        entry = Entry(int(part["row"]), int(part["number"]))
        places = (part[name].decode(errors="replace") for name in ("where", "seen"))
        return Status(part["state"], bool(part["provable"]), entry, part["version"], *places)

    def words(self, rank: int, entry: Entry) -> str:
        """The operation for people: "all_reduce(sum) of float32 [3, 4]"."""
        if entry.row < 0:
            return ""
        return self.texts[rank, entry.row, entry.number % HISTORY].decode(errors="replace")

    def words_at(self, rank: int, channel: int, number: int) -> str:
        """The same, by the channel's id."""
        return self.words(rank, Entry(self._row(rank, channel), number))

    def missing(self, rank: int, entry: Entry) -> list[int]:
        """The ranks that have not yet recorded their side of this operation."""
        if entry.row < 0:
            return []
        channel = self.parts["channels"][rank, entry.row]
        counterpart, needs = int(channel["counterpart"]), int(channel["needs"])
        needed = [r for r in range(self.ranks) if needs >> r & 1]
        return [r for r in needed if self._recorded(r, counterpart) <= entry.number]

    def _first_that_differs(self, channel: Channel, number: int, mine: bytes) -> int | None:
        for rank in channel.needs:
            if self._key(rank, channel.counterpart, number) not in (None, mine):
                time.sleep(0.001)  # a half-written key, on a machine that reorders writes?
                if self._key(rank, channel.counterpart, number) not in (None, mine):
                    return rank
        return None

    def _key(self, rank: int, channel: int, number: int) -> bytes | None:
        """The key of a rank's n-th operation there; None before it has come, or once it is
        forgotten."""
        if not number < self._recorded(rank, channel) <= number + HISTORY:
            return None
        return self.keys[rank, self._row(rank, channel), number % HISTORY]

    def _recorded(self, rank: int, channel: int) -> int:
        row = self._row(rank, channel)
        return int(self.counts[rank, row]) if row >= 0 else 0

    def _row(self, rank: int, channel: int) -> int:
        """The rank's row that holds this channel; -1 if there is none."""
        row = self.rows.get((rank, channel))
        if row is None:
            found = np.flatnonzero(self.parts["ids"][rank] == np.uint64(channel))
            if not len(found):
                return -1
            row = self.rows[rank, channel] = int(found[0])
        return row


def stuck(recorder: FlightRecorder, ended: set[int]) -> dict[int, int]:
    """The ranks that can never go on, each with the version of its wait; `ended` have returned.

    A rank that waits may still go on if everyone it misses may. What is left when no more can be
    freed waits for itself in a circle, or for a rank that has ended.
    """
    running = set(range(recorder.ranks)) - ended
    statuses = {rank: recorder.status(rank) for rank in running}
    waiting = {r: s for r, s in statuses.items() if s.state == WAITING and s.provable}
    free = running - waiting.keys()
    held = {rank: set(recorder.missing(rank, s.entry)) for rank, s in waiting.items()}
    while freed := {rank for rank in held if held[rank] <= free}:
        free |= freed
        held = {rank: needs for rank, needs in held.items() if rank not in freed}
    return {rank: waiting[rank].version for rank in held}


@lru_cache(maxsize=1024)
def channel_of_collectives(group: str, ranks: tuple[int, ...], rank: int) -> Channel:
    """The channel of collectives in the group of that name; `ranks` as in the launch."""
    number = _id(group)
    return Channel(number, number, tuple(r for r in ranks if r != ranks[rank]))


@lru_cache(maxsize=1024)
def channel_of_messages(
    group: str, ranks: tuple[int, ...], rank: int, kind: str, peer: int
) -> Channel:
    """The channel of one direction between two ranks of the group; `kind` is the side of `rank`:
    send or recv."""
    other, pair = ("recv", (rank, peer)) if kind == "send" else ("send", (peer, rank))
    return Channel(_id(group, kind, *pair), _id(group, other, *pair), (ranks[peer],))


def _id(*parts: object) -> int:
    """The same 8 bytes on every rank for the same meeting place; never 0, an empty row."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1
