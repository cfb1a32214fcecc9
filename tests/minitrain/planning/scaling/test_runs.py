"""Runs are recorded once, in the columns that were agreed, and learn towards the known floor."""

from __future__ import annotations

import pytest

from minitrain.errors import InputError
from minitrain.measure.clock import threads
from minitrain.measure.parameters import parameter_count
from minitrain.planning.scaling.runs import Recipe, make_texts, read_runs, record_runs, shape

SMALL = Recipe(length=64, batch=4, held_out_bytes=4000)


def test_a_grid_is_recorded_once_and_larger_runs_come_closer_to_the_floor(tmp_path):
    file = tmp_path / "runs.csv"
    configs = [shape(16, 1), shape(32, 1)]
    with threads(1):
        runs = record_runs(file, configs[:1], [1000, 8000], recipe=SMALL)
    assert file.read_text().splitlines()[0] == "parameters,tokens,loss,floor,seed,device"
    assert [run.parameters for run in runs] == [parameter_count(configs[0])] * 2
    assert [run.tokens for run in runs] == pytest.approx([1000, 8000], rel=0.1)
    assert runs[0].loss > runs[1].loss > runs[1].floor > 0

    before = file.read_text()
    with threads(1):
        again = record_runs(file, configs, [1000], recipe=SMALL)
    assert file.read_text().startswith(before), "rows that are there are kept, and not made again"
    assert len(again) == 3 and again == read_runs(file)


def test_training_text_suffices_and_the_held_out_text_is_another():
    texts = make_texts(20_000, recipe=SMALL)
    assert texts.training.valid.sum() >= 20_000
    rows = {tuple(row) for row in texts.training.tokens.tolist()}
    assert not rows & {tuple(row) for row in texts.held_out.tokens.tolist()}


def test_bad_grids_and_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="one step"):
        record_runs(tmp_path / "runs.csv", [shape(16, 1)], [3], recipe=SMALL)
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="must have"):
        read_runs(file)
