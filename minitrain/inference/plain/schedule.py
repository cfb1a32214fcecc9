"""Decides how many tokens of each request the next step computes: one rule for prompts and answers.

Papers: Yu et al., Orca (OSDI 2022); Agrawal et al., Sarathi, arXiv 2308.16369. After vLLM's v1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Protocol

from minitrain.inference.plain.blocks import Copies, Table


class Asked(Protocol):
    """`tokens` of prompt and answer, of which the first `computed` are in the blocks of `table`."""

    tokens: list[int]
    computed: int
    table: Table
    adapter: Hashable


class Manager(Protocol):
    """As `BlockManager`."""

    def admit(
        self, tokens: Sequence[int], most: int, adapter: Hashable = None
    ) -> tuple[Table, int] | None: ...

    def grow(self, table: Table, start: int, stop: int) -> Copies | None: ...

    def release(self, table: Table) -> None: ...


def schedule(
    running: list[Asked],
    waiting: deque[Asked],
    manager: Manager,
    budget: int,
    most_running: int,
) -> tuple[list[tuple[Asked, int]], Copies]:
    """-> the step's work, (request, how many tokens), and blocks to be copied before it.

    `running`, the oldest first, and `waiting` are changed in place.
    """
    work, copies, left, preempted = [], [], budget, False
    while len(work) < len(running) and left:
        request = running[len(work)]
        count = min(len(request.tokens) - request.computed, left)
        found = manager.grow(request.table, request.computed, request.computed + count)
        if found is None:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            continue
        work.append((request, count))
        copies += found
        left -= count
    while waiting and left and len(running) < most_running and not preempted:
        request = waiting[0]
        admitted = manager.admit(request.tokens, left, request.adapter)
        if admitted is None:
            break
        request.table, request.computed = admitted
        running.append(waiting.popleft())
        count = min(len(request.tokens) - request.computed, left)
        work.append((request, count))
        left -= count
    return work, copies
