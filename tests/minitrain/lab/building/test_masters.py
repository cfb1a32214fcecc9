"""From master to notebooks: ids, stubs, nbgrader's metadata, drift, and words for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbgrader.preprocessors import CheckCellMetadata
from nbgrader.utils import determine_grade

from minitrain.errors import InputError
from minitrain.lab.building.execute import clean_outputs, execute
from minitrain.lab.building.masters import (
    Target,
    as_solution,
    drift,
    for_learners,
    read_master,
    targets,
    with_outputs,
    write,
    write_picture,
)
from minitrain.lab.building.rules import problems

MASTER = "e90_sums"


@pytest.fixture
def target(course: Path) -> Target:
    return targets([MASTER], course)[0]


def edit(target: Target, old: str, new: str) -> Target:
    text = target.master.read_text()
    assert old in text, old
    target.master.write_text(text.replace(old, new))
    return target


def cell_with(notebook, text: str):
    return next(cell for cell in notebook.cells if text in cell.source)


def test_a_solution_says_so_and_has_all_the_code_and_none_of_the_marks(target):
    master = read_master(target)
    title = as_solution(master).cells[0].source
    assert title.startswith("# e90 · Running sums · solution\n\n> This is the solution; you work")
    assert "solution" not in for_learners(master).cells[0].source
    for cell, ours in zip(master.cells[1:], as_solution(master).cells[1:], strict=True):
        is_code = cell.cell_type == "code"
        kept = [line for line in cell.source.splitlines() if not (is_code and "###" in line)]
        assert ours.source.splitlines() == kept
    assert "cumsum(values, 0)" in "".join(cell.source for cell in as_solution(master).cells)


def test_the_learner_gets_stubs_and_no_solution(target):
    lab = for_learners(read_master(target))
    text = "\n".join(cell.source for cell in lab.cells)
    assert "SOLUTION" not in text and "cumsum(values, 0)" not in text and "LAB " not in text
    assert cell_with(lab, "def running_sum").source.endswith("    # YOUR CODE HERE\n    ...")
    assert cell_with(lab, "lab.predict").source.startswith("guess = None  # the last running sum")
    assert all(not cell.get("outputs") for cell in lab.cells)
    compile(cell_with(lab, "def running_sum").source, "cell", "exec")


def test_two_regions_of_a_cell_have_their_own_stubs(target):
    edit(target, '    ### END SOLUTION\n\n\n# %% [markdown] tags=["hint"]',
         '    ### END SOLUTION\n\n\ndef other():\n    ### BEGIN SOLUTION\n    return 1\n'
         '    ### LAB return None  # yours\n    ### END SOLUTION\n\n\n# %% [markdown] tags=["hint"]')  # fmt: skip
    source = cell_with(for_learners(read_master(target)), "def other").source
    assert source.count("# YOUR CODE HERE") == 1 and source.endswith("    return None  # yours")


def test_ids_are_stable_and_unique(target):
    first, again = read_master(target), read_master(target)
    ids = [cell.id for cell in first.cells]
    assert ids == [cell.id for cell in again.cells] and len(set(ids)) == len(ids)
    edit(target, "A running sum appears", "A sum appears")
    changed = [a.id != b.id for a, b in zip(first.cells, read_master(target).cells)]
    assert sum(changed) == 1, "a change of one cell changes one id"


def test_nbgrader_accepts_the_metadata_and_finds_the_points(target):
    lab = for_learners(read_master(target))
    CheckCellMetadata().preprocess(lab, {})
    graded = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points for c in lab.cells
              if c.metadata.get("nbgrader", {}).get("grade")}  # fmt: skip
    assert graded == {"grade-running_sum": 6, "grade-growth": 3, "grade-largest": 1}
    exercise = cell_with(lab, "def running_sum").metadata.nbgrader
    assert exercise.solution and not exercise.grade and not exercise.locked


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('tags=["hint"]', 'tags=["hnt"]', "tag hnt is not known"),
        ("    ### END SOLUTION\n\n\n# %%", "\n# %%", "do not pair"),
        ('# %% tags=["grade"]\nlab.answer("largest", largest)\n', "", "never graded: ['largest']"),
        ('lab.answer("largest", largest)', 'lab.answer("biggest", largest)', "grades 'biggest'"),
        ('# %% tags=["grade"]\nlab.answer("largest"', '# %%\nlab.answer("largest"', "no tag 'gr"),
        ("    ### BEGIN SOLUTION\n    size", "    size", "do not pair"),
    ],
)
def test_a_wrong_master_is_told_with_its_cell(target, old, new, said):
    with pytest.raises(InputError) as caught:
        read_master(edit(target, old, new))
    assert said in str(caught.value)


def test_drift_is_seen_in_either_notebook(target):
    master = read_master(target)
    assert [line.split(" is ")[1] for line in drift(target)] == ["not there", "not there"]
    write(for_learners(master), target.lab), write(as_solution(master), target.solution)
    assert list(drift(target)) == []
    lab = nbformat.read(target.lab, 4)
    lab.cells[2].source += " More."
    nbformat.write(lab, target.lab)
    differs = "labs/e90_sums.ipynb differs from solutions/e90_sums.py from cell 3 on"
    assert list(drift(target)) == [differs]
    edit(target, "A running sum appears", "A sum appears")
    assert len(list(drift(target))) == 2


@pytest.mark.timeout(120)
def test_executed_with_outputs_and_then_current(target, tmp_path):
    master = read_master(target)
    master = as_solution(master)
    assert with_outputs(target, master) is None
    write(execute(master, MASTER, target.lab.parent, quiet=True), target.solution)
    solution = nbformat.read(target.solution, 4)
    assert with_outputs(target, master) == solution
    text = json.dumps(solution)
    assert "execution" not in solution.cells[1].metadata and str(Path.home()) + "/" not in text
    card = cell_with(solution, "lab.grade(").outputs[-1]
    assert card.output_type == "execute_result" and card.data["text/plain"] == "6.0"
    graded = determine_grade(cell_with(solution, "lab.grade("))
    assert graded == (6.0, 6.0), "nbgrader's own reading"
    outputs = cell_with(solution, "lab.experiment(").outputs
    record = outputs[-1].data["application/vnd.minitrain+json"]
    assert record["kind"] == "experiment" and record["value"][1] == {"n": 2, "sum": 2.0}
    picture = cell_with(solution, "show.lines").outputs[0].data["text/html"]
    assert 'alt="sum against elements: measured:' in picture
    edit(target, "A running sum appears", "A sum appears")
    prose = with_outputs(target, as_solution(read_master(target)))
    assert prose is not None, "prose needs no execution"
    assert cell_with(prose, "lab.grade(").outputs == cell_with(solution, "lab.grade(").outputs
    edit(target, "size = len(values)", "size = values.numel()")
    assert with_outputs(target, as_solution(read_master(target))) is None


@pytest.mark.timeout(120)
def test_an_error_names_cell_and_line(tmp_path):
    cells = [
        nbformat.v4.new_code_cell("y = 1"),
        nbformat.v4.new_markdown_cell("Cells are counted with these."),
        nbformat.v4.new_code_cell("x = y\nraise KeyError(x)"),
    ]
    said = r"e90_sums, cell 3, line 2 \(`raise KeyError\(x\)`\) raised KeyError"
    with pytest.raises(InputError, match=said):
        execute(nbformat.v4.new_notebook(cells=cells), MASTER, tmp_path, quiet=True)


def stream(name: str, text: str):
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_outputs_are_cleaned_of_bars_and_widgets_and_refused_with_warnings_and_paths():
    view = {"application/vnd.jupyter.widget-view+json": {}}
    widget = nbformat.v4.new_output("display_data", view)
    kept = clean_outputs([stream("stderr", "\r 50%|##"), widget, stream("stdout", "5")], "cell 1")
    assert [output.text for output in kept] == ["5"]

    path = str(Path.home() / "x")
    for name, text, said in (("stderr", "UserWarning", "stderr"), ("stdout", path, "path of this")):
        with pytest.raises(InputError, match=said):
            clean_outputs([stream(name, text)], "cell 1")


def test_the_picture_is_written_for_the_map(target):
    edit(target, '# %% tags=["experiment"]', '# %% tags=["experiment", "picture"]')
    notebook = read_master(target)
    with pytest.raises(InputError, match="shows none"):
        write_picture(notebook, target)
    html = '<img src="data:image/png;base64,iVBORw0K">'
    image = nbformat.v4.new_output("display_data", {"text/html": html})
    cell_with(notebook, "show.lines").outputs = [image]
    write_picture(notebook, target)
    assert target.picture.read_bytes() == b"\x89PNG\r\n"


TAGGED = "https://github.com/owner/course/archive/refs/tags/v1.zip"


@pytest.mark.parametrize("address", [TAGGED, "https://school.example/course.zip"])
def test_colab_is_offered_where_a_release_is_known(target, address):
    assert not any("colab" in cell.source for cell in read_master(target).cells)
    (target.root / "pyproject.toml").write_text(f'[project.urls]\nRelease = "{address}"\n')
    notebook = read_master(target)
    badge = "/github/owner/course/blob/v1/labs/e90_sums.ipynb" in notebook.cells[0].source
    assert badge == (address == TAGGED)
    fetch = cell_with(notebook, "google.colab")
    assert f'COURSE = "{address}"' in fetch.source and fetch.metadata.cellView == "form"
    assert problems(for_learners(notebook)) == []
