"""Errors of several ranks at once, reported rank by rank in one exception."""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.errors import InputError


@dataclass(frozen=True)
class RankReport:
    """The state of one rank when the launch ended."""

    rank: int
    state: str  # finished, waiting, computing, failed, died
    operation: str | None  # "all_reduce(sum) of float32 [3, 4]", while it waits or where it failed
    line: int | None  # in the learner's own code
    text: str  # all of that in one sentence
    file: str | None = None
    traceback: tuple[str, ...] = ()  # one string per frame of the learner's, innermost last

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.text}"


class RankError(RuntimeError):
    """A launch that failed; `.reports` has one `RankReport` per rank, in order."""

    def __init__(self, headline: str, reports: tuple[RankReport, ...] = ()) -> None:
        super().__init__(headline)
        self.headline, self.reports = headline, reports

    def __str__(self) -> str:
        return describe(self.headline, self.reports)

    def _render_traceback_(self) -> list[str]:
        """The traceback that IPython prints, without the frames of this package."""
        return [f"{type(self).__name__}: {line}" if i == 0 else line
                for i, line in enumerate(str(self).splitlines())]  # fmt: skip


class DeadlockError(RankError):
    """Ranks wait for one another, or for a rank that has returned: none can continue."""


class MismatchError(RankError):
    """Ranks met in different operations, or in the same one with different shapes."""


class RankDied(RankError):
    """The process of a rank ended without a result: killed, out of memory, or os._exit."""


class DeadlineError(RankError):
    """The deadline passed while a rank was still running; `ADVICE` ends its headline."""

    ADVICE = "if the work takes longer, raise timeout="


class RankInputError(RankError, InputError):
    """A rank raised InputError: one sentence for the user, and the ranks concerned."""


class RanksInterrupted(KeyboardInterrupt):
    """The launch was interrupted; all its processes have ended. `.reports` says where they were."""

    def __init__(self, reports: tuple[RankReport, ...]) -> None:
        super().__init__("interrupted")
        self.reports = reports

    def __str__(self) -> str:
        return describe("interrupted; no rank is left", self.reports)

    def _render_traceback_(self) -> list[str]:
        return ["KeyboardInterrupt: " + str(self)]


class Mismatch(RuntimeError):
    """Raised within a rank, the second of two that called different operations."""

    def __init__(self, rank: int, mine: str, other: int, theirs: str) -> None:
        super().__init__(f"rank {rank} is in {mine}, but rank {other} is in {theirs}")
        self.mine = mine


class ConnectionLost(RuntimeError):
    """Raised within a rank whose peer is gone: a consequence, never reported as the cause."""


class WaitedTooLong(RuntimeError):
    """Raised within a rank whose peers did not arrive within an operation's timeout."""

    def __init__(self, rank: int, doing: str, seconds: float, missing: list[int]) -> None:
        whom = f"; {ranks_text(missing)} did not come" if missing else ""
        super().__init__(
            f"rank {rank} has waited {seconds:.0f} s in {doing}{whom}: see what the other ranks do "
            "in that time, and give work that takes so long to all of them"
        )


def describe(headline: str, reports: tuple[RankReport, ...]) -> str:
    """The headline, a line per rank (one for all that failed alike), then the stack of calls in
    each failed rank."""
    said: dict[tuple[str, int | None], list[int]] = {}
    for report in reports:
        alone = None if report.state == "failed" else report.rank
        said.setdefault((report.text, alone), []).append(report.rank)
    lines = [headline, *(f"  {ranks_text(ranks)}: {text}" for (text, _), ranks in said.items())]
    stacks: dict[tuple[str, ...], list[int]] = {}
    for report in reports:
        stacks.setdefault(report.traceback, []).append(report.rank)
    for frames, ranks in stacks.items():
        if len(frames) > 1:
            lines += ["", f"call stack of {ranks_text(ranks)}:", *frames]
    return "\n".join(lines)


def ranks_text(ranks: list[int]) -> str:
    """[0] -> "rank 0", [0, 1] -> "ranks 0, 1"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
