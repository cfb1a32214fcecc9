"""A sample a second at most, for sinks that are slow or that keep everything.

A step of a small model takes a few milliseconds, and a writer of TensorBoard's half of one. What
was left out is merged into what comes next: a value told once a minute is not lost.
"""

from __future__ import annotations

from minitrain.training.report import Sample, Sink

ALWAYS = ("held_out", "ended")


class Thinned:
    """`sink` gets the first sample of each `seconds`, and each that has an evaluation or an end."""

    def __init__(self, sink: Sink, seconds: float = 1.0) -> None:
        self.sink, self.seconds, self.next = sink, seconds, 0.0
        self.held: Sample = {}

    def __call__(self, sample: Sample) -> None:
        self.held |= sample
        if sample["time"] >= self.next or any(name in sample for name in ALWAYS):
            self.next = sample["time"] + self.seconds
            held, self.held = self.held, {}
            self.sink(held)

    def close(self) -> None:
        getattr(self.sink, "close", lambda: None)()
