"""The suite's own option, how its tests are spread over processes, and where its time went.

A file runs on one process, so that it starts its sandbox, its server and its kernel once; each run
of a notebook by itself, and each lab's bank, since those share nothing. What takes longest starts
first: then no process is idle at the end.
"""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling

LAB_OF_BANK = re.compile(r"(.*grading/test_(?:banks|mutations)\.py)::.*\[(e\d+[a-z]*)-")

# Seconds of one test, measured; of others 0.1. They order the work and decide nothing else.
SECONDS = {
    "tests/notebooks/test_run.py": 12.0,
    "tests/ui/": 6.0,
    "tests/minitrain/parallel/hybrid/test_model.py": 5.0,
    "tests/minitrain/reliability/test_torchrun.py": 15.0,
    "tests/minitrain/apps/train/": 2.0,
    "tests/minitrain/bench/": 2.0,
    "tests/minitrain/parallel/zero/": 2.0,
    "tests/minitrain/parallel/pipeline/test_schedules.py": 0.01,
    "tests/minitrain/parallel/": 0.7,
    "tests/labs/": 0.5,
    "tests/grading/": 0.4,
}
WORTH_TELLING = 30.0  # seconds of all tests together


class FilesNotebooksAndBanks(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """What runs on one process, one test after the other."""
    if "notebooks/test_run.py" in nodeid:
        return nodeid
    bank = LAB_OF_BANK.match(nodeid)
    return f"{bank[1]}::{bank[2]}" if bank else nodeid.partition("::")[0]


def expected_seconds(nodeid: str) -> float:
    return next((each for place, each in SECONDS.items() if nodeid.startswith(place)), 0.1)


def part_of(nodeid: str) -> str:
    """notebooks, banks, labs, grading, ui, or the room of the package that is tested."""
    if "test_banks.py" in nodeid or "test_mutations.py" in nodeid:
        return "banks"
    _, part, *inner = nodeid.partition("::")[0].split("/")
    return inner[0] if part == "minitrain" and inner else part


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "what the checks draw for the submissions in the banks (a seed)"
    parser.addoption("--draws", type=int, default=0, help=words)
    words = "which submissions of the banks `make test` grades (a seed)"
    parser.addoption("--sample", type=int, default=0, help=words)
    words = "mutants of each exercise, of its own solution and of another right one"
    parser.addoption("--mutants", type=int, default=1, help=words)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(WhereTimeWent())


@pytest.hookimpl(optionalhook=True)  # xdist may be switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log) -> FilesNotebooksAndBanks:
    return FilesNotebooksAndBanks(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first; what belongs together stays together, in its own order."""
    total: Counter[str] = Counter()
    for item in items:
        total[scope_of(item.nodeid)] += expected_seconds(item.nodeid)
    items.sort(key=lambda item: (-total[scope_of(item.nodeid)], scope_of(item.nodeid)))


class WhereTimeWent:
    """Sums the tests' seconds by part, of all processes, and prints them at the end."""

    def __init__(self) -> None:
        self.began, self.seconds = time.monotonic(), Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[part_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total, wall = sum(self.seconds.values()), time.monotonic() - self.began
        if total < WORTH_TELLING:
            return
        terminalreporter.section(f"where the time went: {total:.0f} s of tests in {wall:.0f} s")
        for part, seconds in self.seconds.most_common():
            if seconds >= 1:
                terminalreporter.write_line(f"{seconds:6.0f} s  {seconds / total:4.0%}  {part}")
