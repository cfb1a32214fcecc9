"""Whose a line is: the learner's, the package's, or the runtime's, which no report blames."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from minitrain.ranks.source import (
    BESIDE,
    CHECKER,
    PACKAGE,
    STANDARD_LIBRARY,
    calling_line,
    is_own,
    is_runtime,
    learner_line,
)

LEARNER, CELL = "/home/someone/train.py", "<ipython-input-3-abc>"
TECHNIQUE = f"{PACKAGE}parallel{os.sep}ddp.py"
RUNTIME = [
    f"{PACKAGE}ranks{os.sep}work.py",
    f"{BESIDE[1]}sandbox{os.sep}child.py",
    f"{STANDARD_LIBRARY}multiprocessing{os.sep}process.py",
    CHECKER,
    "<frozen runpy>",
    "<string>",
]


def stack(*files):
    """The innermost of frames at lines 1, 2, … of these files; the first file is the innermost."""
    frame = None
    for line, file in reversed(list(enumerate(files, 1))):
        frame = SimpleNamespace(
            f_code=SimpleNamespace(co_filename=file), f_lineno=line, f_back=frame
        )
    return frame


@pytest.mark.parametrize("file", [LEARNER, CELL])
def test_what_a_person_wrote_is_theirs(file):
    assert is_own(file) and not is_runtime(file)


@pytest.mark.parametrize("file", RUNTIME)
def test_the_runtime_is_nobodys_mistake(file):
    assert is_runtime(file) and not is_own(file)


def test_a_technique_of_the_package_is_neither():
    assert not is_own(TECHNIQUE) and not is_runtime(TECHNIQUE)


def test_the_learners_line_comes_first_then_the_packages():
    assert learner_line(stack(RUNTIME[0], TECHNIQUE, LEARNER, RUNTIME[2])) == f"{LEARNER}:3"
    assert learner_line(stack(RUNTIME[0], TECHNIQUE, *RUNTIME)) == f"{TECHNIQUE}:2"
    assert learner_line(stack(*RUNTIME)) == learner_line(None) == ""


def test_the_calling_line_is_this_one():
    here = sys._getframe()
    assert calling_line() == f"{__file__}:{here.f_lineno}"
