"""A master's region may name a function of the package: its body is put in, and drift sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.errors import InputError
from minitrain.lab.building import regions
from minitrain.lab.building.masters import (
    Target,
    as_solution,
    drift,
    for_learners,
    read_master,
    targets,
    write,
)
from minitrain.lab.building.regions import body_of

PLAIN = '''"""A module that is never imported."""
raise AssertionError("imported")


def running_sum(values):
    """What it is."""

    # why it is so
    return values.cumsum(0)  # (N,)


class Sums:
    def bare(self):
        if self:
            return 1

    value = 3
'''


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the module `plain_sums`."""
    path = tmp_path / "plain_sums.py"
    path.write_text(PLAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


@pytest.fixture
def target(course: Path, plain: Path) -> Target:
    """A master whose region names `plain_sums:running_sum`."""
    found = targets(["e90_sums"], course)[0]
    text = found.master.read_text()
    begin = text.index("    ### BEGIN SOLUTION\n") + len("    ### BEGIN SOLUTION\n")
    end = text.index("    ### END SOLUTION", begin)
    line = "    ### SOLUTION plain_sums:running_sum\n"
    found.master.write_text(text[:begin] + line + text[end:])
    return found


def test_the_body_comes_with_its_comments_and_without_its_docstring(plain):
    assert body_of("plain_sums", "running_sum") == (
        "\n# why it is so\nreturn values.cumsum(0)  # (N,)"
    )
    assert body_of("plain_sums", "Sums.bare") == "if self:\n    return 1"


def test_the_solution_shows_the_code_and_the_lab_its_stub(target):
    master = read_master(target)
    cell = next(c for c in master.cells if "def running_sum" in c.source)
    assert "    return values.cumsum(0)  # (N,)\n    ### END SOLUTION" in cell.source
    assert not any(regions.SOURCE in c.source for c in master.cells)
    stub = next(c for c in for_learners(master).cells if "def running_sum" in c.source)
    assert "cumsum(0)" not in stub.source and "# YOUR CODE HERE" in stub.source


def test_a_change_of_the_package_is_drift(target, plain):
    master = read_master(target)
    write(for_learners(master), target.lab), write(as_solution(master), target.solution)
    assert list(drift(target)) == []
    plain.write_text(PLAIN.replace("cumsum(0)", "cumsum(dim=0)"))
    assert len(list(drift(target))) == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("plain_sums:running_sum", "plain_sums:running_sun", "has no function running_sun"),
        ("plain_sums:running_sum", "plain_sums:Sums.value", "has no function Sums.value"),
        ("plain_sums:", "plain_sum:", "there is no module plain_sum"),
        ("plain_sums:running_sum", "plain_sums", "is not filled in"),
        ("    ### SOLUTION", "    x = 1\n    ### SOLUTION", "is not filled in"),
    ],
)
def test_what_cannot_be_filled_in_is_told(target, old, new, said):
    target.master.write_text(target.master.read_text().replace(old, new))
    with pytest.raises(InputError, match=said):
        read_master(target)
