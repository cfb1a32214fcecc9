"""payload: functions by value, tensors as they are, and a name for what cannot travel."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.ranks.launch import launch
from minitrain.ranks.payload import dumps
from minitrain.ranks.source import (
    BESIDE,
    CHECKER,
    PACKAGE,
    STANDARD_LIBRARY,
    calling_line,
    learner_line,
)

pytestmark = pytest.mark.timeout(120)


def test_a_closure_and_what_it_holds_travels_by_value():
    scale = torch.tensor([2.0, 3.0])
    results = launch(lambda group: scale * (group.rank + 1), ranks=2)
    assert torch.equal(results[1], torch.tensor([4.0, 6.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_tensors_return_as_they_are(dtype):
    def some(group):
        whole = torch.arange(24).reshape(4, 6).to(dtype)
        return {"whole": whole, "column": whole[:, 2], "none": whole[:0], "scalar": whole[1, 1]}

    [result] = launch(some, ranks=1)
    expected = torch.arange(24).reshape(4, 6).to(dtype)
    assert torch.equal(result["whole"], expected)
    assert torch.equal(result["column"], expected[:, 2])
    assert result["none"].shape == (0, 6) and result["scalar"].shape == ()
    assert {tensor.dtype for tensor in result.values()} == {dtype}


def test_a_slice_does_not_drag_the_whole_along():
    assert len(dumps(torch.zeros(1_000_000)[:3])) < 1000


def test_a_model_goes_and_returns_with_its_parameters():
    def train(group, model):
        model(torch.ones(2, 3)).sum().backward()
        return model

    [model] = launch(train, torch.nn.Linear(3, 1), ranks=1)
    assert isinstance(model.weight, torch.nn.Parameter) and model.weight.requires_grad
    assert torch.equal(model.weight.grad, torch.full((1, 3), 2.0))


def test_an_argument_that_cannot_travel_is_named():
    def use(group, number, lock):
        return number

    with pytest.raises(InputError, match="argument 'lock', a lock, cannot be sent to the ranks"):
        launch(use, 1, threading.Lock())


def test_a_name_that_the_function_uses_is_named():
    lock = threading.Lock()

    def use(group):
        return lock

    with pytest.raises(InputError, match="'lock', which use uses, a lock, cannot be sent"):
        launch(use)


# --- whose a line is: the learner's, the package's, or the runtime's, which no report blames ---


LEARNER = "/home/someone/train.py"
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


def test_the_learners_line_comes_first_then_the_packages():
    assert learner_line(stack(RUNTIME[0], TECHNIQUE, LEARNER, RUNTIME[2])) == f"{LEARNER}:3"
    assert learner_line(stack(RUNTIME[0], TECHNIQUE, *RUNTIME)) == f"{TECHNIQUE}:2"
    assert learner_line(stack(*RUNTIME)) == learner_line(None) == ""


def test_the_calling_line_is_this_one():
    here = sys._getframe()
    assert calling_line() == f"{__file__}:{here.f_lineno}"
