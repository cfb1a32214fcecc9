"""Results of grading: of one check, of a lab.

Messages quote a submission's output, so they are made `printable` here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from minitrain.lab.grading.checks import Graded, checks_of
from minitrain.words import printable


@dataclass(frozen=True)
class CheckResult:
    """`status` is passed, failed, error (of the check itself), not attempted or withheld."""

    exercise: str
    check: str
    points: float
    max_points: float
    status: str
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))


@dataclass(frozen=True)
class Report:
    """A graded lab; `warning`: a remark for the instructor on how it was graded.

    doubts: questions about an experiment's table. sources: the tables from which an experiment or a
    question was graded. prints: fingerprints that reveal copied tables (`doubts.py`). file: the
    graded file, which distinguishes reports of several students.
    """

    lab: str
    checks: tuple[CheckResult, ...]
    warning: str | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prints: Mapping[str, Sequence[str]] = field(default_factory=dict)
    file: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", printable(self.file))

    @property
    def score(self) -> float:
        return sum(result.points for result in self.checks)

    @property
    def max_score(self) -> float:
        return sum(result.max_points for result in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        scores = {"lab": self.lab, "score": self.score, "max_score": self.max_score}
        checks = [asdict(result) for result in self.checks]
        return {
            "file": self.file,
            **scores,
            "warning": self.warning,
            "doubts": dict(self.doubts),
            "checks": checks,
        }

    def withheld(self, doubts: Collection[str] | None = None) -> Report:
        """The same without the points of what is in these doubts, by default all: tables, and
        answers based on them."""
        named = set(self.doubts if doubts is None else doubts)
        checks = (self._without_doubt(result, named) for result in self.checks)
        return replace(self, checks=tuple(checks))

    def _without_doubt(self, result: CheckResult, named: set[str]) -> CheckResult:
        words = [self.doubts[name] for name in self.doubtful(result.exercise) if name in named]
        if not words or not result.points:
            return result
        return replace(result, points=0.0, status="withheld", message=f"withheld: {words[0]}")

    def doubtful(self, item: str) -> list[str]:
        """The tables behind an experiment or a question that are in doubt."""
        return [name for name in self.sources.get(item, ()) if name in self.doubts]


def all_checks(item: type[Graded], status: str, message: str) -> list[CheckResult]:
    """The same result for every check of an item whose checks were not run."""
    return [
        CheckResult(item.name, check.title, 0.0, check.points, status, message)
        for check in checks_of(item)
    ]
