"""What every notebook in labs/ and solutions/ keeps to, read from the files without running them."""

from __future__ import annotations

import re
from html import escape

import nbformat
import pytest

from minitrain.lab import ideas
from minitrain.lab.building.masters import KERNEL, TAGS, Target, drift, targets
from minitrain.lab.building.rules import problems
from minitrain.lab.building.schematics import SCHEMATIC
from minitrain.lab.drawing.display import words
from minitrain.lab.grading.checks import checks_of
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.lab.notebook.lab import COLUMNS

TARGETS = targets()
EVERY = pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
IMAGE = re.compile(r"<img\b[^>]*>")


def lab(target: Target):
    return nbformat.read(target.lab, as_version=4)


def solution(target: Target):
    return nbformat.read(target.solution, as_version=4)


def outputs(target: Target):
    """(cell number, output) of an executed solution."""
    for number, cell in enumerate(solution(target).cells, start=1):
        for output in cell.get("outputs", []):
            yield number, output


@EVERY
def test_both_notebooks_are_what_the_master_makes(target):
    assert list(drift(target)) == [], "run 'make build'"


@EVERY
def test_labs_keep_to_the_limits(target):
    assert problems(lab(target)) == []


@EVERY
def test_labs_hold_no_outputs_and_no_solutions(target):
    for cell in lab(target).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert "SOLUTION" not in cell.source and "solution" not in cell.metadata.get("tags", [])


@EVERY
def test_ids_tags_and_kernel(target):
    for notebook in (lab(target), solution(target)):
        ids = [cell.id for cell in notebook.cells]
        assert len(set(ids)) == len(ids)
        assert notebook.metadata.kernelspec == KERNEL
        assert notebook.metadata.minitrain.lab == target.name
        assert {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])} <= TAGS
    shared = [
        cell.id
        for cell in solution(target).cells
        if "solution" not in cell.metadata.get("tags", [])
    ]
    assert shared == [cell.id for cell in lab(target).cells], "a cell keeps its id in both"


@EVERY
def test_solutions_are_executed_in_order_without_errors(target):
    cells = [cell for cell in solution(target).cells if cell.cell_type == "code" and cell.source]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for number, output in outputs(target):
        assert output.output_type != "error", f"cell {number}: {output.get('evalue')}"
        assert output.get("name") != "stderr", f"cell {number}: {output.text[:200]}"


@EVERY
def test_every_picture_has_alt_text_and_a_white_face(target):
    for number, output in outputs(target):
        data = output.get("data", {})
        bare = {"image/png", "image/svg+xml", "image/jpeg"} & set(data)
        assert not bare, f"cell {number}: a bare {bare}; show it through minitrain.lab.show"
        for image in IMAGE.findall(data.get("text/html", "")):
            alt = re.search(r'\balt="([^"]*)"', image)
            assert alt and len(alt[1].split()) >= 4, f"cell {number}: {image[:120]}"
            assert "background-color:#ffffff" in image


@EVERY
def test_every_image_and_link_of_the_prose_leads_somewhere(target):
    for cell in lab(target).cells:
        if cell.cell_type != "markdown":
            continue
        found = re.findall(r'\]\(([^)#\s]+)|(?:src|href)="([^"#]+)"', cell.source)
        for place in (one or other for one, other in found):
            if "://" not in place:
                assert (target.lab.parent / place).resolve().exists(), f"{target.name}: {place}"


@EVERY
def test_the_solution_has_all_its_points(target):
    for cell in solution(target).cells:
        mark = cell.metadata.get("nbgrader", {})
        if mark.get("grade"):
            results = [
                o.data["text/plain"] for o in cell.outputs if o.output_type == "execute_result"
            ]
            assert [float(points) for points in results] == [mark.points], (
                f"{mark.grade_id}: {results}"
            )


@EVERY
def test_recorded_schematics_say_what_they_say_today(target):
    """`make build` draws them again when their code has changed, without executing the rest."""
    for cell in solution(target).cells:
        if cell.cell_type == "code" and (call := SCHEMATIC.match(cell.source)):
            schematic = getattr(ideas, call["name"])
            values = eval(f"dict({call['values'] or ''})")
            html = "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
            assert f'alt="{escape(schematic.words(**values))}"' in html, cell.source


@EVERY
def test_recorded_cards_have_the_titles_of_today(target):
    html = "".join(output.get("data", {}).get("text/html", "") for _, output in outputs(target))
    items = load_lab(target.name).items if target.name in lab_names() else []
    titles = [words(each.title) for item in items for each in checks_of(item)]
    assert [title for title in titles if title not in html] == []


@EVERY
def test_a_lab_has_the_parts_of_a_lab(target):
    if target.name == "index":
        return
    tags = [cell.metadata.get("tags", []) for cell in lab(target).cells]
    count = {name: sum(name in own for own in tags) for name in TAGS}
    assert count["setup"] == 1 and count["exercise"] and count["experiment"] and count["question"]
    assert count["hint"] >= count["exercise"], "every exercise has its hints"
    cells = len(tags) - 1  # without the title's picture
    assert 30 <= cells <= 125, f"{cells} cells; a lab has 30 to 125"


@pytest.mark.parametrize("name", lab_names())
def test_every_column_of_the_sizes_changes_sizes_that_the_lab_has(name):
    sizes = load_lab(name).sizes
    for column, changed in sizes.items():
        assert column in COLUMNS and changed.keys() <= sizes["cpu"].keys(), (
            f"{name}, column {column}: {sorted(changed.keys() - sizes['cpu'].keys())} is not in cpu"
        )
