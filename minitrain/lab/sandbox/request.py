"""The two messages that cross the sandbox's boundary: a `Request` goes in, a `Reply` comes out.

    grader (sandbox.py)                          child (child.py)
      Request.pack() ─── a file ───────────────► Request.unpack()
      Reply.unpack() ◄── a pipe, one frame ───── Reply.pack()

Both travel as plain data (plain_data.py). The request is the grader's own, so the child may load
the pickles in it; the reply comes from a process that ran the submission, and nothing in it is
trusted: whoever reads it checks it (verdict.py).
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

REPORT_SECONDS = 2.5  # that `launch` may take after its deadline to say who hangs where
FRAME = struct.Struct("<4s16sQ")  # mark, the run's own number, length of the body
MARK = b"MTR1"


@dataclass(frozen=True)
class Request:
    """One run: all that the child is told.

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
    nonce     16 bytes that only this run knows                 the reply's frame, verdict.py
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
    nonce: bytes = bytes(16)

    @property
    def patience(self) -> float:
        """Seconds until the grader ends the run, which `launch` should do itself, with a report."""
        return self.seconds + (REPORT_SECONDS if self.ranks else 0.0)

    def pack(self) -> bytes:
        return plain_data.pack(asdict(self))

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        fields = plain_data.unpack(data)
        parts = {"solution": Solution.of(fields["solution"]), "limits": Limits(**fields["limits"])}
        return cls(**{**fields, **parts})


@dataclass(frozen=True)
class Returned:
    """What the probe returned on one rank, and what was noticed of the submission there."""

    value: Any
    tampered: list[str]  # names that no longer stand for what they did (tampering.py)
    forbidden: list[str]  # what the audit hook refused (audit_hook.py)

    def pack(self) -> bytes:
        return plain_data.pack(vars(self))


@dataclass(frozen=True)
class Reply:
    """What a run came to: `results`, a packed `Returned` a rank, or the `failure` that ended it.

    The other fields are those of a launch's `Results`.
    """

    results: list[Any] = field(default_factory=list)
    failure: tuple[str, str] | None = None  # (kind as in SubmissionFailed, words)
    traces: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    emulated_seconds: float | None = None
    fabric: str | None = None

    def pack(self, nonce: bytes) -> bytes:
        """One frame, marked as this run's."""
        body = plain_data.pack(vars(self))
        return FRAME.pack(MARK, nonce, len(body)) + body

    @classmethod
    def unpack(cls, data: bytes, nonce: bytes) -> Reply:
        """Of exactly one whole frame of this run; PlainDataError for anything else."""
        try:
            mark, number, length = FRAME.unpack_from(data)
            if (mark, number, len(data)) != (MARK, nonce, FRAME.size + length):
                raise PlainDataError("not the one frame of this run")
            return cls(**plain_data.unpack(data[FRAME.size :]))
        except (struct.error, TypeError) as error:
            raise PlainDataError("no reply") from error
