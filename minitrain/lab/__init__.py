"""The machinery of the labs: `from minitrain.lab import Lab, show`.

A learner's function through `lab.grade(f)`, file by file:

    notebook/lab.py         finds the exercise; at the end returns f, or the reference
    grading/grade.py        an attempt of f for its checks
    grading/running.py      runs them in turn, in bounded time: a result each
    grading/attempt.py      what a check is given: sends f and the check's probe as a request
    tests/labs/test_*.py    the check: `submission.run(probe, …)`, then `expect.equal(…)`
    sandbox/sandbox.py      hands the request to a process inside the sandbox
    sandbox/request.py      what crosses the boundary, in both directions
    sandbox/child.py          inside: calls probe(f, …) and sends what it returns
    sandbox/loader.py         gets f, from a pickle or from the text of cells
    tests/labs/probes/*.py    the probe: what runs beside f
    sandbox/watch.py        follows the run until it ends
    sandbox/verdict.py      what it left is a reply, or a failure in words
    grading/relayed.py      what was sent in each call, whatever the rank's own trace says
    grading/expect.py       what came back is as it must be, or words that say what is not

Beside that path: course.py, checks.py and submission.py (what is graded), recorded.py (tables and
answers, which run nothing), pickling.py (f as bytes), results.py (a check's, a lab's),
difference.py (what is not equal, in words), plain_data.py (bytes without pickle), zygote.py (forks
the child; no byte of f passes it), limits.py, bubblewrap.py, audit_hook.py and tampering.py (the
walls), written.py (is there anything to grade?), progress.py and drawing/ (what the learner sees).

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
