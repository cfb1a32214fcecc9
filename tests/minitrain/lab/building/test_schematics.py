"""Only the schematics of a solution are drawn again; what was measured stays."""

from __future__ import annotations

from pathlib import Path

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from minitrain.lab.building.schematics import draw_again, is_schematic


def recorded(source: str, count: int):
    text = {"text/plain": "3.1 s, long ago"}
    output = new_output("execute_result", text, execution_count=count)
    return new_code_cell(source, outputs=[output], execution_count=count)


def test_what_was_measured_stays(tmp_path: Path):
    measured = recorded("seconds = 3.1", 1)
    cells = [
        measured,
        new_markdown_cell("ideas."),
        recorded('ideas.router.picture(capacity="none")', 2),
    ]
    before = new_notebook(cells=cells)
    after = draw_again(before, "e90", tmp_path)
    assert after.cells[:2] == cells[:2]
    html = "".join(output.data.get("text/html", "") for output in after.cells[2].outputs)
    assert "<img" in html and "alt=" in html and "long ago" not in str(after.cells[2])
    assert after.cells[2].execution_count == 2
    assert draw_again(after, "e90", tmp_path) == after, "bit for bit"
    assert cells[2].outputs[0].data["text/plain"] == "3.1 s, long ago", "a copy was drawn"


def test_a_notebook_without_schematics_starts_no_kernel(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("minitrain.lab.building.schematics.execute", None)
    before = new_notebook(cells=[recorded("ideas = 3", 1), new_markdown_cell("ideas.router()")])
    assert not any(map(is_schematic, before.cells))
    assert draw_again(before, "e90", tmp_path) == before
