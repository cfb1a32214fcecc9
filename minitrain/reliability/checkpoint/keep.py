"""Retention of checkpoints: the newest to resume from, and now and then one to go back to.

    Keep(last=2, every=100)     steps 100 200 … for ever, and the newest two

Runs have gone back by hundreds of steps after a loss spike (PaLM, arXiv 2204.02311, section 5.1),
and a silent corruption is found late: the newest two alone are then no help.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minitrain.errors import InputError


@dataclass(frozen=True)
class Keep:
    """The newest `last` stay, and each whose step is a multiple of `every`, if that is given."""

    last: int = 2
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last < 1 or (self.every is not None and self.every < 1):
            raise InputError(
                f"Keep(last={self.last}, every={self.every}): keep at least the newest, last=1 or "
                "more, and every=1 or more steps"
            )

    def doomed(self, steps: Iterable[int]) -> list[int]:
        """Those of the steps that go."""
        older = sorted(steps)[: -self.last]
        return [step for step in older if self.every is None or step % self.every]


NEWEST_TWO = Keep()
