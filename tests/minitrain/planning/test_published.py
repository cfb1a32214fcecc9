from __future__ import annotations

import pytest

from minitrain.planning.step import workload
from minitrain.planning.validate import published_steps


def test_every_unit_becomes_seconds_of_a_step():
    rows = {row.run.name: row for row in published_steps()}
    assert rows["1T full"].seconds == 94.42, "printed as seconds"
    llama = rows["8192 GPUs, cp 1"]
    flops = workload.model_flops(llama.run) / llama.run.gpus / llama.seconds
    assert flops == pytest.approx(430e12), "printed as the model's FLOP/s"
    large = rows["1008.0B"]
    flops = workload.hardware_flops(large.run) / large.run.gpus / large.seconds
    assert flops == pytest.approx(163e12), "printed with recomputation"


def test_a_table_alone_and_all_of_them():
    assert len(published_steps("Korthikanti table 5")) == 8
    assert len(published_steps()) >= 93 and published_steps("no such table") == []
