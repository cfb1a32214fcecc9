"""What a run tells while it trains: a progress bar, and a CSV with a line for every step.

     62%|█████   | step 412 · loss 1.318 · held out 1.305, 7.9% above the floor · 14,200 tok/s

The floor is the entropy of the text, which no model can beat; it is known exactly where the text
was drawn from a language whose law we wrote. For any other text the distance is left out.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from minitrain.paths import write_atomically
from minitrain.training.loop import StepRecord

COLUMNS = ("step", "tokens", "seconds", "loss", "lr", "grad_norm", "tokens_per_second", "held_out")


def above_floor(loss: float, floor: float) -> float:
    """The distance to the floor as a fraction: 0.1 is a loss 10% above the entropy."""
    return loss / floor - 1.0


def describe_loss(loss: float, floor: float | None) -> str:
    """'1.305, 7.9% above the floor', or, where no floor is known, '1.305'."""
    return f"{loss:.3f}" + (f", {above_floor(loss, floor):.1%} above the floor" if floor else "")


class Reporter:
    """A callback for `train`: evaluates `evaluations` times a run, keeps the CSV, moves the bar.

    `evaluate` gives the held-out loss. On N ranks every rank calls it, at the same steps; only the
    one that `speaks` writes. Where the output is no terminal, a line at each evaluation replaces
    the bar. A resumed run drops the lines of the CSV after `done_steps`, since it comes to them
    again; `done_part` of the run was done by then, so that it evaluates where an uninterrupted one
    does.
    """

    def __init__(
        self,
        log: Path,
        evaluate: Callable[[], float],
        floor: float | None = None,
        utilisation: Callable[[float], float] | None = None,  # tokens/s -> MFU
        evaluations: int = 8,
        speaks: bool = True,
        done_steps: int = 0,
        done_part: float = 0.0,
        memory: Callable[[], str] | None = None,  # in use, in words
    ):
        self.log, self.evaluate, self.floor = log, evaluate, floor
        self.utilisation, self.evaluations, self.speaks = utilisation, evaluations, speaks
        self.memory = memory
        self.held_out: float | None = None
        self.unwritten: list[list] = []  # lines for which there was no room
        self.has_moved = True  # the model, since it was evaluated
        self.part = int(min(1.0, done_part) * evaluations)  # evaluations that were due so far
        layout = "{percentage:3.0f}%|{bar:16}| {desc} [{elapsed}<{remaining}]"
        silent = not (speaks and sys.stderr.isatty())
        self.bar = tqdm(total=100, bar_format=layout, disable=silent)
        if speaks:
            cut_log(log, done_steps)

    def __call__(self, record: StepRecord) -> None:
        part = int(record.progress * self.evaluations)
        due, self.part, self.has_moved = part > self.part, part, True
        if due:
            self.latest()
        if self.speaks:
            self._write(record, self.held_out if due else None)
            self.bar.set_description_str(self._describe(record), refresh=False)
            self.bar.update(100 * record.progress - self.bar.n)
            if due and self.bar.disable:
                print(f"{record.progress:4.0%} | {self._describe(record)}", flush=True)

    def latest(self) -> float:
        """The held-out loss of the model as it is now; evaluated anew only where it has moved."""
        if self.has_moved:
            self.held_out, self.has_moved = self.evaluate(), False
        return self.held_out

    def close(self) -> None:
        self.bar.close()

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

    def _write(self, record: StepRecord, held_out: float | None) -> None:
        values = {name: getattr(record, name) for name in COLUMNS[:-1]}
        line = [*values.values(), "" if held_out is None else held_out]
        self.unwritten.append(line)
        whole = self.log.stat().st_size
        try:
            with open(self.log, "a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(self.unwritten)
            self.unwritten.clear()
        except OSError as error:  # a full disk: the training goes on
            os.truncate(self.log, whole)  # not half a line
            if len(self.unwritten) == 1:
                print(f"\n{self.log}: {error.strerror}; its lines wait for room", file=sys.stderr)


def cut_log(log: Path, steps: int) -> None:
    """Leaves the heading and the lines of the first `steps` steps."""
    lines = log.read_text(encoding="utf-8").splitlines()[1 : steps + 1] if log.is_file() else []
    write_atomically(log, "\n".join([",".join(COLUMNS), *lines]) + "\n")
