"""The machinery of the labs: `from minitrain.lab import Lab, show`.

A learner's function through `lab.grade(f)`, file by file:

    notebook/lab.py      the exercise of that name; at the end, f or the reference
    grading/grade.py     its checks in turn, each with an attempt at it
    grading/attempt.py   f and the check's probe, pickled: a request
    tests/labs/…         the check: `submission.run(probe, …)`, then `expect.equal(…)`
    sandbox/sandbox.py   the request goes into the sandbox, under its rules
    sandbox/request.py   what crosses the boundary, in both directions
    sandbox/zygote.py      a process is forked for this run ...
    sandbox/child.py       ... which calls probe(f, …)
    sandbox/loader.py      and gets f from a pickle, or from cells
    sandbox/watch.py     outside, the run is followed until it ends
    sandbox/verdict.py   what it left is a reply, or a failure in words
    grading/expect.py    the check compares what came back; the failure says what differs

Beside that path: course.py, checks.py and submission.py (what is graded), plain_data.py (bytes
without pickle), limits.py, bubblewrap.py, audit_hook.py and tampering.py (the walls), progress.py
and drawing/ (what the learner sees).

`Lab` is imported at its first use, so that the sandboxed child, which has no use for it, starts
fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.lab.notebook.lab import Lab

__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    if name == "Lab":
        from minitrain.lab.notebook.lab import Lab

        return Lab
    raise AttributeError(f"module 'minitrain.lab' has no attribute '{name}'")
