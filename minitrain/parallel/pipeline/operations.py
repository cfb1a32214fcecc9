"""A pipeline schedule: for each rank, the list of operations it runs, in order.

Of p ranks, each holds v chunks of the model: chunk c of rank r is stage c·p + r of v·p. `F` is a
forward, `B` a backward, `W` the weight-gradient half of a split backward. `schedules.py` makes
schedules, `timeline.py` times them, `executor.py` runs them. Lab: e02c_pipeline_parallel.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Operation(NamedTuple):
    """One pass of one microbatch through one chunk of this rank."""

    kind: str  # F, B or W
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


Place = tuple[int, int]  # a rank and one of its chunks
Route = tuple[Place, ...]  # the places that a microbatch passes: one for each stage


@dataclass(frozen=True)
class Schedule:
    """`ranks[r]` is the order of rank r; `chunks` is v.

    Microbatch i takes route i mod (number of routes): a single one that winds v times around the
    ranks, or in DualPipe two, one from either end.
    """

    name: str
    microbatches: int
    chunks: int
    ranks: tuple[tuple[Operation, ...], ...]
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        if not self.routes:
            object.__setattr__(self, "routes", (winding(len(self.ranks), self.chunks),))

    @property
    def splits_backward(self) -> bool:
        return any(operation.kind == "W" for operation in self.ranks[0])

    @property
    def stages(self) -> int:
        """The number of parts the model is cut into."""
        return len(self.routes[0])

    @cached_property
    def stage_at(self) -> dict[Place, int]:
        return {place: stage for route in self.routes for stage, place in enumerate(route)}

    def route(self, microbatch: int) -> Route:
        return self.routes[microbatch % len(self.routes)]

    def source(self, rank: int, operation: Operation) -> tuple[int, Operation] | None:
        """The operation that produces its input: of the previous stage for F, the next for B; None
        at the ends."""
        return self._neighbour(rank, operation, {"F": -1, "B": 1})

    def target(self, rank: int, operation: Operation) -> tuple[int, Operation] | None:
        """The operation that uses its result; None at the ends."""
        return self._neighbour(rank, operation, {"F": 1, "B": -1})

    def needs(self, rank: int, operation: Operation) -> Iterator[tuple[int, Operation]]:
        """The operations that must come first: the neighbour's, and this rank's own earlier one."""
        source = self.source(rank, operation)
        if source is not None:
            yield source
        own = {"B": "F", "W": "B"}.get(operation.kind)
        if own is not None:
            yield rank, operation._replace(kind=own)

    @cached_property
    def run_order(self) -> list[tuple[int, Operation, int | None]]:
        """All ranks' operations in dependency order: (rank, operation, index in this list of the
        operation on another rank that it waits for). On a deadlock an AssertionError names the
        waits.
        """
        done = [0] * len(self.ranks)
        place: dict[tuple[int, Operation], int] = {}
        asleep: dict[tuple[int, Operation], list[int]] = defaultdict(list)
        awake, order = deque(range(len(self.ranks))), []
        while awake:
            rank = awake.popleft()
            for operation in self.ranks[rank][done[rank] :]:
                needs = list(self.needs(rank, operation))
                missing = [need for need in needs if need not in place]
                if missing:
                    asleep[missing[0]].append(rank)
                    break
                others = [place[need] for need in needs if need[0] != rank]
                place[rank, operation] = len(order)
                order.append((rank, operation, others[0] if others else None))
                done[rank] += 1
                awake.extend(asleep.pop((rank, operation), ()))
        stuck = [r for r, mine in enumerate(self.ranks) if done[r] < len(mine)]
        waits = ", ".join(f"rank {r} before {self.ranks[r][done[r]]}" for r in stuck)
        assert not stuck, f"the schedule '{self.name}' deadlocks: {waits}"
        return order

    def _neighbour(
        self, rank: int, operation: Operation, steps: dict[str, int]
    ) -> tuple[int, Operation] | None:
        kind, microbatch, chunk = operation
        if kind not in steps:
            return None
        route = self.route(microbatch)
        stage = self.stage_at[rank, chunk] + steps[kind]
        if not 0 <= stage < len(route):
            return None
        rank, chunk = route[stage]
        return rank, Operation(kind, microbatch, chunk)


def winding(p: int, v: int) -> Route:
    """Stage s is chunk s // p of rank s mod p."""
    return tuple((stage % p, stage // p) for stage in range(v * p))
