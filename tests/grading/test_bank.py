"""A mistake is an edit of today's solution, or it says why it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.lab.grading.submission import Submission

from .bank import Specimen, bank, edited, read
from .conftest import submitted

SOLUTION = """def add(a, b):
    total = a
    for x in b:
        total += x
    return total"""


def mistakes(tmp_path: Path, text: str) -> list[Specimen]:
    (tmp_path / "t00.diff").write_text(text)
    return list(read(tmp_path / "t00.diff"))


def mistaken(tmp_path: Path, *lines: str) -> str:
    """The solution's text after an edit of these lines."""
    head = "# name: wrong\n# exercise: add\n# says: no\n"
    (mistake,) = mistakes(tmp_path, head + "\n".join(lines) + "\n")
    return edited(solution(), mistake).cells[0].source


def solution() -> Submission:
    return submitted(SOLUTION, "def other(a):\n    return total")


def test_an_edit_takes_the_place_of_whole_lines(tmp_path: Path):
    assert mistaken(tmp_path, "-        total += x", "+        total = x") == SOLUTION.replace(
        "+= x", "= x"
    )


def test_lines_that_stay_say_where_others_come(tmp_path: Path):
    text = mistaken(tmp_path, "     for x in b:", "+        x += 1")
    assert text == SOLUTION.replace("in b:", "in b:\n        x += 1")


def test_a_mistake_may_have_several_edits(tmp_path: Path):
    text = mistaken(tmp_path, "-    total = a", "+    total = 0", "@@", "-    return total")
    assert "total = 0" in text and "return" not in text


def test_several_mistakes_have_their_own_words(tmp_path: Path):
    found = mistakes(
        tmp_path,
        "# name: one\n# exercise: add\n# says: a | b\n# says: c\n-    total = a\n\n"
        "# name: two\n# exercise: other\n# says: d\n-    return total\n",
    )
    assert [(m.name, m.exercise, m.says) for m in found] == [
        ("one", "add", [["a", "b"], ["c"]]),
        ("two", "other", [["d"]]),
    ]
    assert found[0].missing("B,\n and more") == ["c"]
    assert edited(solution(), found[1]).cells[0] == solution().cells[0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["-        total -= x", "+        total += x"],
            r"t00.diff, line 4: .* 1 lines .* 0 times",
        ),
        (["-total = a"], "0 times"),
        (["+    total = 0"], "the 0 lines"),
        (["     total = a", "@@", "-    total = 1"], "line 6: .* 0 times"),
        (["     total = a"], "wrong changes nothing of `add`"),
        (["-    total = a", "total = 0"], "line 5: mark `total = 0` with -, \\+ or a blank"),
    ],
)
def test_an_edit_that_does_not_fit_says_so(tmp_path: Path, lines: list[str], words: str):
    with pytest.raises(ValueError, match=words):
        mistaken(tmp_path, *lines)


def test_lines_that_are_there_twice_are_no_place(tmp_path: Path):
    (mistake,) = mistakes(tmp_path, "# name: wrong\n# exercise: twice\n-    a += 1\n")
    with pytest.raises(ValueError, match="2 times, not once"):
        edited(submitted("def twice(a):\n    a += 1\n    a += 1\n    return a"), mistake)


def test_lines_without_marks_are_a_whole_program(tmp_path: Path):
    text = "# name: own\n# exercise: add\ndef add(a, b):\n    return a + sum(b)\n"
    first, last = mistakes(tmp_path, text + "\n# name: wrong\n# exercise: add\n-    total = a\n")
    assert first.edits == [] and first.submission().cells[-1].source.startswith(text)
    assert last.name == "wrong" and len(last.edits) == 1


def test_a_file_without_names_is_one_submission(tmp_path: Path):
    (tmp_path / "alone.py").write_text("# exercise: add\n# says: no\n\nadd = sum\n")
    (alone,) = read(tmp_path / "alone.py")
    assert (alone.name, alone.exercise, alone.says) == ("alone", "add", [["no"]])
    assert alone.submission().defines("add")


def test_every_edit_fits_todays_solutions():
    """In a second, what the graded bank would say in minutes."""
    for specimen in bank(Path(__file__).parent / "banks"):
        assert specimen.submission().defines(specimen.exercise), specimen.name
