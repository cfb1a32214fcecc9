"""`train` with techniques together: ZeRO, optimizers, FP8, recomputation and a mesh in one run."""

from __future__ import annotations

import pytest

from minitrain.errors import InputError

from .test_command import folder as folder
from .test_command import text as text
from .test_command import train
from .test_mesh import common as common
from .test_mesh import curve

TWO = ["--ranks", 2]
MESH = ["--dp", 2, "--tp", 2, "--pp", 2, "--zero", 1]


@pytest.mark.parametrize(
    ("shared", "layout", "bound"),
    [
        (["--optimizer", "lion", "--recompute", "full"], [*TWO, "--zero", 3], 1e-4),
        (["--dtype", "fp8"], [*TWO, "--zero", 2], 2e-2),
        (["--dtype", "bfloat16", "--recompute", "selective"], MESH, 2e-2),
    ],
)
def test_together_they_train_what_one_process_trains(common, shared, layout, bound):
    """Then it goes on as one process, or on other ranks, from the same file."""
    common = [*common, *shared]
    train(*common, "--out", "one")
    train(*common, *layout, "--out", "many")
    for column in ("loss", "grad_norm", "held_out", "tokens"):
        assert curve("many", column) == pytest.approx(curve("one", column), rel=bound), column
    fewer = ["--dp", 1, "--tp", 1, "--pp", 1] if "--dp" in layout else ["--ranks", 1]
    train("--out", "many", "--resume", "--steps", 5, *fewer)
    train("--out", "one", "--resume", "--steps", 5)
    assert curve("many") == pytest.approx(curve("one"), rel=2 * bound)


@pytest.mark.parametrize(("name", "layout"), [("adam8bit", []), ("adafactor", TWO)])
def test_other_optimizers_train_and_go_on(common, name, layout):
    train(*common, "--optimizer", name, *layout, "--out", "run")
    train("--out", "run", "--resume", "--steps", 5)
    losses = curve("run")
    assert len(losses) == 5 and losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--zero", "1"], "--zero 1 divides memory between ranks: give --ranks 2 or more"),
        (["--zero", "2", "--dp", "2"], "stage 1, not 2: use --zero 1"),
        ([*TWO, "--zero", "3", "--compile"], "one piece: leave --compile out, or use --zero 2"),
        (["--tp", "2", "--optimizer", "adafactor"], "whole matrices, and a mesh cuts them: use"),
        ([*TWO, "--zero", "1", "--audit"], "--zero 1 cuts them: leave --audit out"),
        (["--tp", "2", "--dtype", "fp8"], "not cut by a mesh: use bfloat16, or --zero"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, answer, folder):
    with pytest.raises(InputError, match=answer):
        train(*arguments)
    assert list(folder.iterdir()) == []
