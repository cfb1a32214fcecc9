"""The course's own machinery, under one name: `from minitrain.lab import Lab, show, ideas`.

`labs/kit` builds the notebooks, and `tests/grader` grades the code that a learner writes in them.
No technique imports either. The path of a learner's function through `lab.grade(f)`:

    labs/kit/notebook/lab.py              finds the exercise; at the end returns f, or the reference
    tests/grader/grading/grade.py         an attempt of f for its checks
    tests/grader/grading/running.py       runs them in turn, with a time limit: one result each
    tests/grader/grading/attempt.py       the argument of a check: sends f and the check's probe
    tests/labs/test_*.py                  the check: `submission.run(probe, …)`, `expect.equal(…)`
    tests/grader/sandbox/sandbox.py       hands the request to a process inside the sandbox
    tests/grader/sandbox/request.py       what crosses the boundary, in both directions
    tests/grader/sandbox/child.py           inside: calls probe(f, …) and sends what it returns
    tests/grader/sandbox/loader.py          loads f, from a pickle or from the source of cells
    tests/labs/probes/*.py                  the probe: what runs beside f
    tests/grader/sandbox/watch.py         follows the run until it ends
    tests/grader/sandbox/verdict.py       turns its output into a reply or a failure message
    tests/grader/grading/relayed.py       the bytes each call sent, as the relay counted them
    tests/grader/grading/expect.py        compares the result; a failure message says why it is
    wrong

Beside that path: course.py, checks.py and submission.py (what is graded), recorded.py (tables and
answers, which run no code), pickling.py (f as bytes), results.py (results of checks and labs),
difference.py (describes differences), variants.py (likely mistakes, derived from the reference),
plain_data.py (serialization without pickle), zygote.py (forks the child; never reads f), limits.py,
bubblewrap.py, audit_hook.py and tampering.py (the sandbox's walls), written.py (is there anything
to grade?), progress.py and drawing/ (the learner's view).
"""

from minitrain.paths import course_root

__path__ = [str(course_root() / place) for place in ("labs/kit", "tests/grader")]


def __getattr__(name: str) -> object:
    """Imports `Lab` on first use: the sandboxed child never needs it, and starts faster."""
    if name == "Lab":
        from minitrain.lab.notebook.lab import Lab

        return Lab
    raise AttributeError(f"module 'minitrain.lab' has no attribute '{name}'")
