"""What a check is given as `submission`: one exercise of one learner, which it can run.

    submission.run(probe, *args)                  -> probe(f, *args), in a fresh sandboxed child
    submission.launch(probe, *args, ranks=N)      -> Results of probe(group, f, *args) on each rank

`f` is the learner's function or class; probe and arguments are the grader's, and only plain data
and tensors come back. Anything else that happens raises SubmissionFailed with its words.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import cloudpickle

from minitrain.errors import InputError
from minitrain.lab.failures import SubmissionFailed
from minitrain.lab.sandbox.sandbox import Sandbox
from minitrain.measure.traffic import Trace
from minitrain.network.fabric import find_fabric
from minitrain.ranks.launch import Results
from minitrain.ranks.payload import Pickler
from minitrain.ranks.source import CHECKER, is_own

GRACE = 2.5  # seconds that `launch` may take after its deadline to report who hangs where
LEAST = 0.3  # seconds in which no run can be judged
OURS = ("minitrain", "__main__", "__mp_main__")
LIBRARIES = tuple(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib"))


class Attempt:
    """`solution` as `loader.load` takes it."""

    def __init__(self, sandbox: Sandbox, solution: dict[str, Any], name: str) -> None:
        self.sandbox, self.solution, self.name = sandbox, solution, name
        self.traces: list[Trace] = []  # of the last launch
        self.used_seconds = 0.0
        self.has_hung = False

    def run(self, probe: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """What `probe(f, *args)` returned."""
        return self._send(probe, args, 0, None, timeout)["results"][0]

    def launch(
        self,
        probe: Callable[..., Any],
        *args: Any,
        ranks: int,
        fabric: Any = None,
        timeout: float | None = None,
    ) -> Results:
        """What `probe(group, f, *args)` returned on each rank, with `.traces`, as of `launch`."""
        assert ranks > 0, "a launch has ranks"
        reply = self._send(probe, args, ranks, fabric, timeout)
        try:
            traces = [Trace.from_dict(plain) for plain in reply["traces"]]
            if len(traces) != ranks or len(reply["results"]) != ranks:
                raise ValueError("not one result a rank")
            timing = (float(reply["seconds"]), reply["emulated_seconds"], reply["fabric"])
        except (KeyError, TypeError, ValueError) as error:
            raise SubmissionFailed("tampered", "its traces are not as the grader's own") from error
        self.traces = traces
        return Results(reply["results"], traces, *timing)

    def _send(
        self, probe: Callable[..., Any], args: tuple, ranks: int, fabric: Any, timeout: float | None
    ) -> dict[str, Any]:
        with by_value(probe):
            payload = RenamingPickler(_named).dumps((probe, args))
        request = {
            "solution": self.solution,
            "name": self.name,
            "guarded": True,
            "probe": payload,
            "ranks": ranks,
            "fabric": cloudpickle.dumps(None if fabric is None else find_fabric(fabric)),
            "grace": GRACE if ranks else 0.0,
        }
        self.sandbox.wait_until_ready()  # its start is no part of the exercise's time
        seconds = self._seconds(timeout)
        began = time.monotonic()
        try:
            return self.sandbox.run(request, seconds)
        except SubmissionFailed:
            self.has_hung |= time.monotonic() - began >= seconds
            raise
        finally:
            self.used_seconds += time.monotonic() - began

    def _seconds(self, timeout: float | None) -> float:
        """The deadline of the next run: short once it has hung, within the exercise's own."""
        limits = self.sandbox.limits
        left = limits.exercise_seconds - self.used_seconds
        if left < LEAST:
            words = f"not run: the checks before it took all of the {limits.exercise_seconds:g} s"
            raise SubmissionFailed("timeout", words)
        usual = limits.after_hang if self.has_hung else (timeout or limits.seconds)
        return min(usual, left)

    def never_waited(self) -> str | None:
        """In words, the first work of the last launch that nobody waited for."""
        try:
            for trace in self.traces:
                trace.check_waited()
        except InputError as error:
            return str(error)
        return None


def _named(file: str) -> str:
    """The checker's own frames are none that a learner can mend: no message shows them."""
    return CHECKER if is_own(file) else file


@contextmanager
def by_value(function: Any) -> Iterator[None]:
    """Probes and their helpers live in `tests/`, which the sandbox does not show: sent whole."""
    modules = [module for module in list(sys.modules.values()) if _is_beside(module, function)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_beside(module: Any, function: Any) -> bool:
    """The function's own module, and those in the same folder; no library, nor this package."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    home = getattr(sys.modules.get(function.__module__ or ""), "__file__", None)
    if not isinstance(file, str) or not isinstance(home, str):
        return False
    if name.partition(".")[0] in OURS or file.startswith(LIBRARIES):
        return False
    return os.path.dirname(file) == os.path.dirname(home)


class RenamingPickler(Pickler):
    """Code that goes by value says that it comes from `rename(its file)`."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.buffer = io.BytesIO()
        super().__init__(self.buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.rename = rename

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            renamed = value.replace(co_filename=self.rename(value.co_filename))
            return self.dispatch_table[CodeType](renamed)
        return super().reducer_override(value)

    def dumps(self, value: Any) -> bytes:
        self.dump(value)
        return self.buffer.getvalue()
