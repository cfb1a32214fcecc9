"""The course's own machinery, under one name: `from minitrain.lab import Lab, show, ideas`.

It lies beside what it serves: `labs/kit` makes notebooks of the package, `tests/grader` grades what
a learner writes in them. No technique imports it. A learner's function through `lab.grade(f)`:

    labs/kit/notebook/lab.py              finds the exercise; at the end returns f, or the reference
    tests/grader/grading/grade.py         an attempt of f for its checks
    tests/grader/grading/running.py       runs them in turn, in bounded time: a result each
    tests/grader/grading/attempt.py       what a check is given: sends f and the check's probe
    tests/labs/test_*.py                  the check: `submission.run(probe, …)`, `expect.equal(…)`
    tests/grader/sandbox/sandbox.py       hands the request to a process inside the sandbox
    tests/grader/sandbox/request.py       what crosses the boundary, in both directions
    tests/grader/sandbox/child.py           inside: calls probe(f, …) and sends what it returns
    tests/grader/sandbox/loader.py          gets f, from a pickle or from the text of cells
    tests/labs/probes/*.py                  the probe: what runs beside f
    tests/grader/sandbox/watch.py         follows the run until it ends
    tests/grader/sandbox/verdict.py       what it left is a reply, or a failure in words
    tests/grader/grading/relayed.py       what each call sent, whatever the rank's own trace says
    tests/grader/grading/expect.py        what came back is as it must be, or words that say why not

Beside that path: course.py, checks.py and submission.py (what is graded), recorded.py (tables and
answers, which run nothing), pickling.py (f as bytes), results.py (a check's, a lab's),
difference.py (what is not equal, in words), variants.py (likely mistakes, made of the reference),
plain_data.py (bytes without pickle), zygote.py (forks
the child; no byte of f passes it), limits.py, bubblewrap.py, audit_hook.py and tampering.py (the
walls), written.py (is there anything to grade?), progress.py and drawing/ (what the learner sees).
"""

from minitrain.paths import course_root

__path__ = [str(course_root() / place) for place in ("labs/kit", "tests/grader")]


def __getattr__(name: str) -> object:
    """Imports `Lab` at its first use: the sandboxed child has none for it, and starts fast."""
    if name == "Lab":
        from minitrain.lab.notebook.lab import Lab

        return Lab
    raise AttributeError(f"module 'minitrain.lab' has no attribute '{name}'")
