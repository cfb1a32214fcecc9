"""Reports of a run in progress: a sample after every step, to a progress bar and to `sinks`.

     62%|██████    | 01:14<00:45 · step 412 · loss 1.318 · held out 1.305, 7.9% above the floor

A sample is a flat dict of the values known after the step (names: `monitoring/metrics.py`); a sink
is anything that takes one: a file, TensorBoard, a Prometheus endpoint. The floor is the entropy of
the text, which no model can beat; it is known exactly if the text was drawn from a language whose
distribution we wrote. For any other text the distance is omitted.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from minitrain.training.loop import Diverged, StepRecord

Sample = dict[str, Any]
Sink = Callable[[Sample], object]
LAYOUT = "{percentage:3.0f}%|{bar:10}| {elapsed}<{remaining} · {desc}"  # time first: lines are cut
FINISHED, STOPPED, DIVERGED, FAILED = "finished", "stopped", "diverged", "failed"
COLUMNS = ("step", "tokens", "seconds", "loss", "lr", "grad_norm", "tokens_per_second", "skipped")


def above_floor(loss: float, floor: float) -> float:
    """The distance to the floor as a fraction: 0.1 is a loss 10% above the entropy."""
    return loss / floor - 1.0


def describe_loss(loss: float, floor: float | None) -> str:
    """'1.305, 7.9% above the floor', or, if no floor is known, '1.305'."""
    return f"{loss:.3f}" + (f", {above_floor(loss, floor):.1%} above the floor" if floor else "")


class Reporter:
    """A callback for `train`: evaluates `evaluations` times a run, feeds `sinks`, moves the bar.

    `evaluate` returns the held-out loss. All N ranks call it, at the same steps; only the rank that
    `speaks` writes to the terminal: a bar, or if its output is not a terminal, a line per
    evaluation. `done_part`: the finished fraction of a resumed run, so that it evaluates when an
    uninterrupted run does. `measure`: further values of a step, such as a `Meter`'s.

    As a context manager it reports to the sinks how the run ended, even by an exception.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        evaluate: Callable[[], float],
        floor: float | None = None,
        utilisation: Callable[[float], float] | None = None,  # tokens/s -> MFU
        evaluations: int = 8,
        speaks: bool = True,
        done_part: float = 0.0,
        memory: Callable[[], str] | None = None,  # in use, as text
        measure: Callable[[StepRecord], Sample] = lambda record: {},
    ):
        self.sinks, self.evaluate, self.floor = sinks, evaluate, floor
        self.utilisation, self.evaluations, self.speaks = utilisation, evaluations, speaks
        self.memory, self.measure = memory, measure
        self.held_out: float | None = None
        self.has_moved = True  # the model changed since the last evaluation
        self.has_ended = False
        self.part = int(min(1.0, done_part) * evaluations)  # evaluations due so far
        silent = not (speaks and sys.stderr.isatty())
        self.bar = tqdm(total=100, bar_format=LAYOUT, disable=silent)

    def __call__(self, record: StepRecord) -> None:
        part = int(record.progress * self.evaluations)
        due, self.part, self.has_moved = part > self.part, part, True
        if due:
            self.latest()
        if self.sinks:
            self._tell(self._sample(record, due))
        if self.speaks:
            self.bar.set_description_str(self._describe(record), refresh=False)
            self.bar.update(100 * record.progress - self.bar.n)
            if due and self.bar.disable:
                print(f"{record.progress:4.0%} | {self._describe(record)}", flush=True)

    def latest(self) -> float:
        """The current model's held-out loss, re-evaluated only if the model has changed."""
        if self.has_moved:
            self.held_out, self.has_moved = self.evaluate(), False
        return self.held_out

    def close(self, ended: str = FINISHED) -> None:
        """Reports to the sinks how the run ended, once, and closes those that can be closed."""
        self.bar.close()
        if self.has_ended:
            return
        self.has_ended = True
        self._tell({"ended": ended})
        for sink in self.sinks:
            getattr(sink, "close", lambda: None)()

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Diverged):
            self._tell({"step": error.step, "loss": error.loss, "grad_norm": error.grad_norm})
            self.close(DIVERGED)
        self.close(FINISHED if error is None else FAILED)

    def _tell(self, sample: Sample) -> None:
        sample = {"time": time.time(), **sample}
        for sink in self.sinks:
            sink(sample)

    def _sample(self, record: StepRecord, due: bool) -> Sample:
        sample = {name: getattr(record, name) for name in COLUMNS}
        if math.isfinite(record.total_steps):
            sample["total_steps"] = record.total_steps
        if self.floor:
            sample["floor"] = self.floor
        if due:
            sample["held_out"] = self.held_out
            if self.floor:
                sample["above_floor"] = above_floor(self.held_out, self.floor)
        utilised = self.utilisation(record.tokens_per_second) if self.utilisation else math.nan
        if math.isfinite(utilised):
            sample["mfu"] = utilised
        more = self.measure(record).items()  # numpy's and torch's numbers become plain ones
        return sample | {k: v.tolist() if hasattr(v, "tolist") else v for k, v in more}

    def _describe(self, record: StepRecord) -> str:
        parts = [f"step {record.step}", f"loss {record.loss:.3f}"]
        if self.held_out is not None:
            parts.append(f"held out {describe_loss(self.held_out, self.floor)}")
        parts.append(f"{record.tokens_per_second:,.0f} tok/s")
        if self.utilisation:
            parts.append(f"MFU {self.utilisation(record.tokens_per_second):.0%}")
        if self.memory:
            parts.append(self.memory())
        return " · ".join(parts)
