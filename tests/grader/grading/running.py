"""Runs checks in the grader's own process: in bounded time, on unpredictable inputs."""

from __future__ import annotations

import inspect
import secrets
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from minitrain.generators import generator_states, restore_generators, seed_generators
from minitrain.lab.failures import CheckFailed, NotAttempted
from minitrain.lab.grading.checks import Check, Graded, Question, checks_of
from minitrain.lab.grading.results import CheckResult
from minitrain.lab.sandbox.sandbox import SandboxDown

JUDGING_SECONDS = 10.0  # for a check to read data that may be fabricated, of any size
_draw: int | None = None  # of this process; None: each check draws its own


@contextmanager
def drawn_from(draw: int | None) -> Iterator[None]:
    """Derives checks' inputs from this seed, for every submission; None: each check draws its
    own."""
    global _draw
    before, _draw = _draw, draw
    try:
        yield
    finally:
        _draw = before


def run_checks(item: type[Graded], fixtures: dict[str, Any]) -> list[CheckResult]:
    """Runs each check with the fixtures that it names.

    After a failure only the first line of a later one is kept, the observation: its likely causes
    suppose that what the checks above test is right.
    """
    results: list[CheckResult] = []
    for check in checks_of(item):
        result = run_check(item, check, fixtures)
        if result.status == "failed" and any(r.status in ("failed", "error") for r in results):
            result = replace(result, message=result.message.split("\n")[0])
        results.append(result)
    return results


def run_check(item: type[Graded], check: Check, fixtures: dict[str, Any]) -> CheckResult:
    """Runs one check; any exception of it or the learner's code becomes its result (except
    SandboxDown: then nothing was graded)."""
    wanted = list(inspect.signature(check.function).parameters)[1:]
    status, message, points = "passed", "", check.points
    try:
        with (
            unpredictable(f"{item.name}: {check.title}"),
            within(JUDGING_SECONDS + _running_seconds(fixtures)),
        ):
            check.function(item(), **{name: fixtures[name] for name in wanted})
    except NotAttempted:
        status, message, points = "not attempted", "not filled in yet", 0.0
    except CheckFailed as failure:
        status, message, points = "failed", _told(item, failure), 0.0
    except SandboxDown:
        raise
    except Exception as error:
        attempt = fixtures.get("submission")
        status, message = _stumbled(error, attempt.never_waited() if attempt else None)
        points = 0.0
    return CheckResult(item.name, check.title, points, check.points, status, message)


def _running_seconds(fixtures: dict[str, Any]) -> float:
    """The sandbox's share of a check's seconds."""
    attempt = fixtures.get("submission")
    return attempt.sandbox.limits.exercise_seconds if attempt else 0.0


def _told(item: type[Graded], failure: CheckFailed) -> str:
    """Keeps the expected answer out of the message."""
    is_secret = issubclass(item, Question) and not item.tells
    return failure.secretive if is_secret else str(failure)


def _stumbled(error: Exception, never_waited: str | None) -> tuple[str, str]:
    """The status and message of a check that raised: wrong type or shape, or a missing wait."""
    if never_waited is not None:
        return "failed", never_waited
    return "error", (
        f"what came back is not what the check can read ({type(error).__name__}: {error}): "
        "compare the type and the shape of what you return with the docstring"
    )


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """CheckFailed once the time is up; only in the main thread, and not on Windows."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(*_: object) -> NoReturn:
        raise CheckFailed(
            f"it took the check more than {seconds:g} s: is it of the size that was asked for? "
            "If it is, the machine is busy: grade again"
        )

    handler = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)  # another's, such as pytest's
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextmanager
def unpredictable(name: str = "") -> Iterator[None]:
    """Seeds inputs unpredictably, and restores the caller's random state.

    name: of the check, so that one seed (`drawn_from`) gives each check its own inputs.
    """
    before = generator_states()
    ours = secrets.randbits(32) if _draw is None else zlib.crc32(f"{_draw} {name}".encode())
    seed_generators(ours)
    try:
        yield
    finally:
        restore_generators(before)
