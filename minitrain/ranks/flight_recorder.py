"""Flight recorder: a memory-mapped page shared by all ranks of one machine, so that a hang explains
itself (torch's own, TORCH_NCCL_TRACE_BUFFER_SIZE, keeps the same for NCCL).

Each rank records what it starts and what it waits for in its own part, and reads the others' parts.
So the second rank to reach a collective sees *before* it starts that the first called a different
one (a mismatch), and the launching process sees which ranks wait for each other (a deadlock)
without asking them: even a killed rank leaves its last record. 4 µs per operation of 4 ranks;
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

CHANNELS, HISTORY = 128, 32  # per rank; the latest operations kept per channel
PLACE = 256  # bytes of a "file:line"
STARTING, COMPUTING, WAITING = range(3)

CHANNEL = np.dtype(
    [
        ("counterpart", "u8"),  # the id of the channel where the other side records its part
        ("needs", "u8"),  # bit r: rank r must have recorded its part before this one can end
        ("recorded", "u8"),  # how many operations so far; the n-th is at n % HISTORY
        ("key", "S64", HISTORY),  # must agree on both sides
        ("words", "S160", HISTORY),  # for people
    ],
    align=True,
)
PART = np.dtype(
    [
        ("state", "u1"),
        ("provable", "?"),
        ("row", "i4"),  # the channel it waits in, and which of its operations
        ("number", "u8"),
        ("version", "u8"),  # counts the changes of state
        ("where", f"S{PLACE}"),  # "file:line" of the last wait
        ("seen", f"S{PLACE}"),  # "file:line" when the rank's watch last looked
        ("ids", "u8", CHANNELS),
        ("channels", CHANNEL, CHANNELS),
    ],
    align=True,
)


class Channel(NamedTuple):
    """A sequence of operations of one kind: the n-th here matches the n-th in `counterpart`."""

    id: int
    counterpart: int
    needs: tuple[int, ...]  # ranks that must arrive before an operation here can end


class Entry(NamedTuple):
    """One recorded operation: `number` in the rank's channel at `row`; -1: not recorded."""

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
    """One part per rank in `memory`; `rank` writes its own."""

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
        """An empty recorder; the file is sparse, so a rank with few channels touches few pages."""
        with open(path, "wb") as file:
            os.truncate(file.fileno(), ranks * PART.itemsize)
        return FlightRecorder.open(path)

    @staticmethod
    def open(path: str | os.PathLike, rank: int = 0) -> FlightRecorder:
        """The recorder that all ranks share: in a rank, or in the process that launched them."""
        with open(path, "r+b") as file:
            return FlightRecorder(mmap.mmap(file.fileno(), 0), rank)

    @staticmethod
    def alone() -> FlightRecorder:
        """A recorder for a rank that shares no memory: it knows only its own waits."""
        return FlightRecorder(mmap.mmap(-1, PART.itemsize), sees_others=False)

    @property
    def ranks(self) -> int:
        return len(self.parts)

    def close(self) -> None:
        """Releases the memory and the file descriptor."""
        del self.parts, self.counts, self.keys, self.texts

    # ---- a rank writes its own part ----

    def record(self, channel: Channel, key: str, words: str) -> tuple[Entry, int | None]:
        """Records this rank's next operation in `channel`, before it starts.

        Returns its entry, and the rank that recorded a different key for it, if any.
        """
        if not self.sees_others:
            channel = channel._replace(needs=())
        row = self._own_row(channel)
        if row is None:
            return Entry(-1, 0), None
        mine, number = key.encode(), int(self.counts[self.rank, row])
        self.keys[self.rank, row, number % HISTORY] = mine
        self.texts[self.rank, row, number % HISTORY] = words.encode()
        self.counts[self.rank, row] = number + 1  # last: a reader that sees it finds the rest
        return Entry(row, number), self._first_that_differs(channel, number, mine)

    def wait(self, entry: Entry, where: str, provable: bool) -> None:
        """Records that this rank waits for `entry`, at the line `where`."""
        parts, self.version = self.parts, self.version + 1
        parts["where"][self.rank] = where.encode()[-PLACE:]
        parts["row"][self.rank], parts["number"][self.rank] = entry
        parts["provable"][self.rank] = provable and entry.row >= 0
        parts["version"][self.rank] = self.version
        parts["state"][self.rank] = WAITING  # last: a reader that sees it finds the rest

    def compute(self) -> None:
        """Records that this rank is computing."""
        parts, self.version = self.parts, self.version + 1
        parts["state"][self.rank] = COMPUTING  # first: no one mistakes the rest for a wait
        parts["version"][self.rank] = self.version
        parts["row"][self.rank] = -1

    def glance(self, where: str) -> None:
        """Records the rank's current line, in case it dies there."""
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
        """The operation in readable form: "all_reduce(sum) of float32 [3, 4]"."""
        if entry.row < 0:
            return ""
        return self.texts[rank, entry.row, entry.number % HISTORY].decode(errors="replace")

    def words_at(self, rank: int, channel: int, number: int) -> str:
        """The same, by channel id."""
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
        """The key of a rank's n-th operation there; None if not yet recorded, or already
        overwritten."""
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
    """The ranks that can never continue, each with the version of its wait; `ended` have returned.

    A waiting rank may still continue if every rank it waits for may. The ranks that remain wait in
    a cycle, or for a rank that has ended.
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
    """The same 8 bytes on every rank for the same channel; never 0, which marks an empty row."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1
