"""Steps are functions of a row: our loop, `datasets` and Ray Data give the same."""

from __future__ import annotations

import pytest
from datasets import Dataset

from minitrain.data.preparation.documents import read_rows
from minitrain.data.preparation.filters.c4 import C4, sentence_lines
from minitrain.data.preparation.filters.gopher import GOPHER
from minitrain.data.preparation.steps import Edit, Filter, is_kept, run_steps

STEPS = (Filter(GOPHER[:1]), Edit(sentence_lines), Filter(C4))
ROWS = [
    {"id": "short", "text": "too short"},
    {"id": "menu", "text": "Home About Contact\n" * 30},
    {"id": "code", "text": "This line has a { in it, as code does.\n" * 20},
    {"id": "prose", "text": "This is a line of prose.\n" * 20 + "Menu"},
]
REASONS = ["too_few_words", "nothing_left", "curly_bracket", ""]


def test_the_first_reason_stays_and_a_kept_text_is_edited():
    rows = [run_steps(STEPS, row) for row in ROWS]
    assert [row["dropped"] for row in rows] == REASONS
    assert [row["id"] for row in rows if is_kept(row)] == ["prose"]
    assert rows[3]["text"].endswith("prose.") and rows[0]["text"] == "too short"
    assert ROWS[3]["text"].endswith("Menu"), "the row that was given is left alone"


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_map_takes_the_steps_as_they_are(streaming):
    dataset = Dataset.from_list(ROWS)
    if streaming:
        dataset = dataset.to_iterable_dataset()
    for step in STEPS:
        dataset = dataset.map(step)
    assert list(dataset) == [run_steps(STEPS, row) for row in ROWS]
    assert [row["id"] for row in dataset.filter(is_kept)] == ["prose"]


def test_ray_data_takes_the_steps_as_they_are():
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray[data]'")
    dataset = ray.data.from_items(ROWS)
    for step in STEPS:
        dataset = dataset.map(step)
    found = {row["id"]: row["dropped"] for row in dataset.take_all()}
    assert found == dict(zip((row["id"] for row in ROWS), REASONS))


def test_sources_to_rows_to_steps(tmp_path):
    (tmp_path / "a.txt").write_text(ROWS[3]["text"])
    rows = (run_steps(STEPS, row) for row in read_rows([tmp_path / "a.txt"]))
    kept = list(filter(is_kept, rows))
    assert len(kept) == 1 and "Menu" not in kept[0]["text"]
