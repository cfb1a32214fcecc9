"""The two messages that cross the sandbox's boundary: a `Request` goes in, a `Reply` comes out.

    grader (sandbox.py)                          child (child.py)
      Request.pack() ─── a file ───────────────► Request.unpack()
      Reply.unpack() ◄── a pipe, one frame ───── Reply.pack()

Both travel as plain data (plain_data.py). The request is the grader's own, so the child may load
the pickles in it; the reply comes from a process that ran the submission, and nothing in it is
trusted: its reader checks it (verdict.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from minitrain.lab.sandbox import plain_data
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.loader import Solution
from minitrain.lab.sandbox.plain_data import PlainDataError

REPORT_SECONDS = 2.5  # for `launch` to report after its deadline who hangs where
NONCE_BYTES = 16
FRAME = struct.Struct("<4s16sQ")  # mark, the run's own number, length of the body
MARK = b"MTR1"
INTRUDED = "it wrote on the channel that belongs to the grader"


@dataclass(frozen=True)
class Request:
    """One run: everything sent to the child.

    field     what it is                                        who reads it
              made by grading/attempt.py:
    solution  the learner's code (loader.py)                    loader.py; verdict.py, for its lines
    name      of the function or class that is graded           loader.py
    probe     pickled (probe, arguments), of the lab's checks   child.py calls probe(f, *arguments)
    ranks     of a launch; 0: one call, in the child itself     child.py
    fabric    a pickled Fabric, or None                         child.py, for launch
    seconds   wall-clock until the run is ended                 child.py, watch.py, verdict.py
              made by sandbox.py:
    limits    of memory, processes, files, output               limits.py, watch.py, verdict.py
    hidden    modules that may not be imported -> their file    audit_hook.py
    denied    files and folders that may not be read            audit_hook.py
    nonce     16 bytes unknown to the run's processes      the reply's frame, verdict.py
    """

    solution: Solution
    name: str
    probe: bytes
    ranks: int
    fabric: bytes | None
    seconds: float
    limits: Limits = field(default_factory=Limits)
    hidden: dict[str, str] = field(default_factory=dict)
    denied: Sequence[str] = ()
    nonce: bytes = bytes(NONCE_BYTES)

    @property
    def patience(self) -> float:
        """Seconds until the grader ends the run; `launch` should end it earlier, with a report."""
        return self.seconds + (REPORT_SECONDS if self.ranks else 0.0)

    def pack(self) -> bytes:
        """The nonce comes last, to be read by the child after the submission's process has
        ended."""
        return plain_data.pack({**asdict(self), "nonce": bytes(NONCE_BYTES)}) + self.nonce

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        """The request from its frame, without the nonce."""
        fields = plain_data.unpack(data)
        parts = {"solution": Solution.of(fields["solution"]), "limits": Limits(**fields["limits"])}
        return cls(**{**fields, **parts})


@dataclass(frozen=True)
class Returned:
    """The probe's result on one rank, and violations by the submission there."""

    value: Any
    tampered: list[str]  # names whose objects were replaced (tampering.py)
    forbidden: list[str]  # operations refused by the audit hook (audit_hook.py)

    def pack(self) -> bytes:
        return plain_data.pack(vars(self))


@dataclass(frozen=True)
class Reply:
    """The outcome of a run: `results`, a packed `Returned` per rank, or the `failure` that ended
    it.

    The other fields are those of a launch's `Results`.
    """

    results: list[Any] = field(default_factory=list)
    failure: tuple[str, str] | None = None  # (kind as in SubmissionFailed, words)
    traces: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    emulated_seconds: float | None = None
    fabric: str | None = None
    notes: list[list[Any]] = field(default_factory=list)  # the relay's, of each rank
    past_the_meter: str | None = None  # how a rank's trace differs from the relay

    def pack(self, nonce: bytes) -> bytes:
        """One frame, marked as this run's."""
        return framed(plain_data.pack(vars(self)), nonce)

    @classmethod
    def unpack(cls, data: bytes, nonce: bytes) -> Reply:
        """The reply from exactly one whole frame of this run; PlainDataError for anything else."""
        try:
            return cls(**plain_data.unpack(unframed(data, nonce)))
        except TypeError as error:
            raise PlainDataError("no reply") from error


def framed(body: bytes, nonce: bytes) -> bytes:
    return FRAME.pack(MARK, nonce, len(body)) + body


def unframed(data: bytes, nonce: bytes) -> bytes:
    """The body of exactly one whole frame with that nonce; PlainDataError for anything else."""
    head = data[: FRAME.size]
    if head != FRAME.pack(MARK, nonce, max(0, len(data) - FRAME.size)):
        raise PlainDataError("not the one frame of this run")
    return data[FRAME.size :]
