"""The accuracy that the planner claims, figure by figure."""

from __future__ import annotations

import pytest

from minitrain.planning.step.step import hardware_flops, model_flops
from minitrain.planning.validate import published_steps, validate


@pytest.fixture(scope="module")
def tables():
    return {table.table: table for table in validate()}


def test_zero_table_1_all_54_cells_to_their_printed_digits(tables):
    rows = tables["ZeRO table 1"].rows
    assert len(rows) == 54
    for row in rows:
        digits = len(f"{row.published:g}".partition(".")[2])
        unit = 10**-digits
        assert abs(row.predicted - row.published) <= unit, row  # the paper cuts some off


def test_the_eight_activation_sizes_of_korthikanti_figure_1(tables):
    table = tables["Korthikanti figure 1, activations"]
    assert len(table.rows) == 8 and table.worst_error < 1e-9


@pytest.mark.parametrize(
    "table,rows,mean,worst",
    [
        ("Korthikanti figure 1, parameters and optimizer", 4, 0.04, 0.04),
        ("Korthikanti table 5", 8, 0.03, 0.08),
        ("SC21 table 1", 10, 0.05, 0.12),
        ("Llama 3 405B table 4", 3, 0.10, 0.10),
        ("MPT benchmarks", 72, 0.08, 0.20),
        ("DeepSeek-V3 GPU-hours", 1, 0.12, 0.12),
        ("All-reduce a100_8gpu_nvlink3", 20, 0.15, 0.35),
        ("All-reduce h200_8gpu_nvls", 20, 0.15, 0.15),
        ("Exact parameters", 14, 1e-6, 1e-6),
        ("Chinchilla approach 1", 9, 0.05, 0.08),
        ("Chinchilla approach 2", 9, 0.05, 0.08),
        ("CO2", 8, 0.03, 0.03),
        ("Energy", 6, 0.01, 0.01),
    ],
)
def test_errors_against_publication(tables, table, rows, mean, worst):
    found = tables[table]
    assert len(found.rows) == rows
    assert found.mean_error <= mean and found.worst_error <= worst, found


def test_the_order_of_the_mpt_rows_is_predicted(tables):
    """By FLOP/s a chip, where size alone orders nothing; tokens a second would be near 1."""
    assert tables["MPT benchmarks"].rank_correlation >= 0.95


def test_chinchilla_approach_3_lies_within_the_spread_of_the_first_two(tables):
    first, second, law = (tables[f"Chinchilla approach {i}"].rows for i in (1, 2, 3))
    spread = max(abs(b.published / a.published - 1) for a, b in zip(first, second))
    assert all(abs(row.error) <= spread for row in law)


def test_what_is_circular_says_so(tables):
    assert tables["CO2"].use == tables["Energy"].use == "circular"
    assert tables["Not fitted"].use == "not fitted"


def test_layer_times_that_were_not_fitted(tables):
    """Korthikanti's table 4: five ways of one layer, forward and backward."""
    assert tables["Korthikanti table 4"].worst_error < 0.10


def test_every_unit_becomes_seconds_of_a_step():
    rows = {row.run.name: row for row in published_steps()}
    assert rows["1T full"].seconds == 94.42, "printed as seconds"
    llama = rows["8192 GPUs, cp 1"]
    flops = model_flops(llama.run) / llama.run.gpus / llama.seconds
    assert flops == pytest.approx(430e12), "printed as the model's FLOP/s"
    large = rows["1008.0B"]
    flops = hardware_flops(large.run) / large.run.gpus / large.seconds
    assert flops == pytest.approx(163e12), "printed with recomputation"


def test_a_table_alone_and_all_of_them():
    assert len(published_steps("Korthikanti table 5")) == 8
    assert len(published_steps()) >= 93 and published_steps("no such table") == []
