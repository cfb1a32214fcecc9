from __future__ import annotations

import csv

import pytest

from minitrain.errors import InputError
from minitrain.paths import data_dir
from minitrain.planning.hardware import chips, find_chip, number, read_table


def test_29_chips_each_with_a_source():
    with (data_dir() / "hardware.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == len(chips()) == 29
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize("chip", chips().values(), ids=chips())
def test_figures_are_plausible_and_in_si(chip):
    for kind, rate in chip.flops:
        assert 5e13 < rate < 1e16, kind
    assert 1e10 < chip.link < 2e12 and 1e9 < chip.network <= chip.link
    assert chip.memory is None or 1e10 < chip.memory < 3e11
    assert 0.3 < chip.constants.matmul < 0.9 and 0.3 < chip.constants.memory < 1


def test_dense_not_sparse_and_one_way_not_both():
    h100 = find_chip("H100-SXM-80GB")
    assert h100.peak("bf16") == 989e12, "1,979 is the sparse figure"
    assert h100.link == 450e9, "900 counts both ways"
    assert find_chip("L4").peak("bf16") == 121e12, "242 is the sparse figure"
    assert find_chip("TPUv4").link == 6 * 45e9, "45 is one link of six"
    assert find_chip("RTX3090").peak("fp16") == 71e12, "142 accumulates in FP16"


def test_an_uncalibrated_chip_takes_the_default_scaled_by_its_best_matmul():
    mi300, b200 = find_chip("MI300X"), find_chip("B200-SXM")
    assert not mi300.calibrated and find_chip("H100-SXM-80GB").calibrated
    assert mi300.constants.matmul < b200.constants.matmul, "51% against 78% of the peak measured"


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(InputError, match="did you mean 'H100-SXM-80GB'"):
        find_chip("H100-SXM-80")
    with pytest.raises(InputError, match="is not there"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="tdp_W is 'much'"):
        number({"tdp_W": "much"}, "tdp_W")
    with pytest.raises(InputError, match="use fp16"):
        find_chip("V100-SXM2-32GB").peak("bf16")
