"""Each rule of a lab's format: a notebook that breaks it is told so, with the cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from minitrain.lab.building.rules import code_lines, problems, words
from minitrain.lab.building.schematics import draw_again


def told(*cells) -> str:
    return "\n".join(problems(new_notebook(cells=[new_markdown_cell("# Title"), *cells])))


def code(source: str, *tags: str):
    return new_code_cell(source, metadata={"tags": list(tags)})


LONG = "word " * 131
LINES = "\n".join(f"x{i} = {i}" for i in range(21))
SHORT = LINES.rpartition("\n")[0]


@pytest.mark.parametrize(
    "cell, said",
    [
        (new_markdown_cell(LONG), "cell 2 has 131 words"),
        (new_markdown_cell("<details><summary>a</summary>\ntext</details>"), "blank line after <"),
        (new_markdown_cell('<div class="alert alert-info">x</div>'), "blockquote"),
        (new_markdown_cell("![](x.png)"), "no alt text"),
        (new_markdown_cell('<img src="x.png">'), "no alt text"),
        (code(LINES), "a demo has at most 10"),
        (code(LINES, "exercise"), "an exercise has at most 20"),
        (code(LINES, "experiment"), "21 lines of given code; fold it"),
        (code(LINES, "setup"), "setup cell has at most 6"),
        (code("%timeit x"), "% magic"),
        (code('show.lines({}, x="", y="", alt="a")'), "'alt=' is not for a learner"),
        (code("ax.set_xlim(0, 1)", "experiment"), "fold it"),
    ],
)
def test_a_broken_rule_is_told(cell, said):
    assert said in told(cell)


@pytest.mark.parametrize(
    "cell",
    [
        new_markdown_cell("word " * 60),
        new_markdown_cell("word " * 130, metadata={"tags": ["hint"]}),
        new_markdown_cell("<details><summary>a</summary>\n\ntext</details>"),
        new_markdown_cell('![a ring](x.png) <img src="x" alt="a ring">'),
        code(LINES, "experiment", "folded"),
        code(SHORT, "experiment"),
        code("y = x % 3\nshow.lines({}, x='', y='')"),
        code("show.lines({}, x='', y='', alt='time against size')", "folded"),
    ],
)
def test_what_keeps_the_rules_passes(cell):
    assert told(cell) == ""


def test_words_counts_prose_only():
    assert words("one [two](https://a.b/c) $$x + y$$ <b>three</b>\n```\ncode here\n```") == 3


def test_the_arguments_of_a_picture_are_no_lines_of_code():
    picture = "show.lines(\n" + "    a=1,\n" * 12 + ")"
    assert "at most" not in told(code(f"with open('a'):\n    x = 1\n{picture}\ny = 2"))
    assert "at most 10" in told(code(picture.replace("show.lines", "print")))


def test_code_lines_counts_what_says_something():
    text = '# comment\n\ndef f():\n    """Doc\n    string."""\n    return g(\n        1,\n    )'
    assert code_lines(text) == 3


# --- only the schematics of a solution are drawn again; what was measured stays ---


def recorded(source: str, count: int):
    text = {"text/plain": "3.1 s, long ago"}
    output = new_output("execute_result", text, execution_count=count)
    return new_code_cell(source, outputs=[output], execution_count=count)


def test_what_was_measured_stays(tmp_path: Path):
    measured = recorded("seconds = 3.1", 1)
    drawn = recorded('ideas.router.picture(capacity="none")', 2)
    cells = [measured, new_markdown_cell("ideas."), drawn]
    before = new_notebook(cells=cells)
    after = draw_again(before, "e90", tmp_path)
    assert after.cells[:2] == cells[:2]
    html = "".join(output.data.get("text/html", "") for output in after.cells[2].outputs)
    assert "<img" in html and "alt=" in html and "long ago" not in str(after.cells[2])
    assert after.cells[2].execution_count == 2
    assert draw_again(after, "e90", tmp_path) == after, "bit for bit"
    assert cells[2].outputs[0].data["text/plain"] == "3.1 s, long ago", "a copy was drawn"
