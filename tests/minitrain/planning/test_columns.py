from __future__ import annotations

import csv

import pytest

from minitrain.errors import InputError
from minitrain.paths import data_dir
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import chips, find_chip, number, read_table

ROW = {"chip": "H100-SXM-80GB", "layers": "32", "hidden": "4096"}


def row(**cells: object) -> dict[str, str]:
    return ROW | {name: str(value) for name, value in cells.items()}


def test_three_cells_are_enough():
    run = run_from_row(ROW)
    assert (run.model.heads, run.model.ffn, run.model.gated, run.seq) == (32, 11008, True, 2048)
    assert (run.gpus, run.plan.precision, run.plan.schedule) == (1, "bf16", "1f1b")
    assert run_from_row(ROW | {"tp": "", "dp": " ", "gated": "", "name": ""}) == run


def test_what_follows_from_what():
    run = run_from_row(row(gpus=64, tp=8, pp=4, global_batch=32))
    assert (run.plan.dp, run.plan.vpp, run.plan.schedule) == (2, 8, "interleaved")
    assert run_from_row(row(gpus=64, tp=8, pp=4, global_batch=32, vpp=1)).plan.schedule == "1f1b"
    assert run_from_row(row(tp=2, dp=8)).gpus == 16
    assert run_from_row(row(precision="fp16")).plan.software == "2022"
    assert run_from_row(row(gated=0)).model.ffn == 4 * 4096
    assert run_from_row({**ROW, "chip": "V100-SXM2-32GB"}).plan.precision == "fp16"
    assert run_from_row(row(layers="32.0")).model.layers == 32


def test_a_microbatch_is_chosen_that_fits():
    assert run_from_row(row(dp=8, global_batch=128, zero=3, recompute="full")).plan.micro_batch == 8
    assert run_from_row(row(dp=8, global_batch=128, zero=3, seq=8192)).plan.micro_batch < 8


@pytest.mark.parametrize(
    "cells,words",
    [
        ({"chip": ""}, "chip is missing: give"),
        ({"chip": "H100-SXM-80G"}, "did you mean 'H100-SXM-80GB'"),
        ({"layers": ""}, "layers is missing"),
        ({"layers": "many"}, "layers is 'many': a whole number"),
        ({"hidden": "-1"}, "hidden is '-1'"),
        ({"hidden": "1e999"}, "hidden is '1e999'"),
        ({"hidden": "nan"}, "hidden is 'nan'"),
        ({"heads": "33"}, "heads is 33, which does not divide hidden 4096"),
        ({"kv_heads": "5"}, "kv_heads is 5: it must divide heads 32"),
        ({"tp": "3"}, "tp is 3, which does not divide heads 32"),
        ({"tp": "0"}, "tp is 0: it must be 1 or more"),
        ({"gpus": "12", "tp": "8"}, "gpus is 12, not a multiple of tp·cp·pp = 8: use 8 or 16"),
        ({"gpus": "16", "dp": "4"}, "dp is 4, but gpus 16"),
        ({"dp": "4", "global_batch": "6", "micro_batch": "1"}, "global_batch is 6, not a multiple"),
        ({"cp": "3"}, "cp is 3, which does not divide seq 2048"),
        ({"pp": "64"}, "pp 64 x vpp 1 cuts 32 layers"),
        ({"pp": "2", "vpp": "2", "schedule": "gpipe"}, "vpp is 2 with schedule 'gpipe'"),
        ({"ep": "2", "dp": "2"}, "ep is 2, but experts is 0"),
        ({"ep": "3", "dp": "3", "experts": "8"}, "ep is 3: it must divide experts 8"),
        ({"experts": "4", "experts_per_token": "5"}, "give experts_per_token"),
        ({"zero": "4"}, "zero is 4: it must be 0, 1, 2 or 3"),
        ({"recompute": "some"}, "recompute is 'some': it must be none, selective or full"),
        ({"precision": "fp4"}, "precision is fp4, which H100-SXM-80GB has no matrix units for"),
        ({"sp": "2"}, "sp is '2': it must be 0 or 1"),
        ({"schedule": "dualpipe"}, "schedule is 'dualpipe': it must be"),
        ({"hidden": "1e12"}, "hidden is '1e12': the planner takes 1,000,000 at most"),
        ({"layers": "4000", "pp": "2000", "vpp": "1"}, "pp 2000 x vpp 1 is 2000 stages"),
        ({"moe_ffn": "1408"}, "moe_ffn is 1408, but experts is 0"),
        ({"experts": "4", "dense_layers": "40"}, "dense_layers is 40: layers 32 at most"),
        ({"software": "2019"}, "software is '2019': it must be fused, eager or 2022"),
    ],
)
def test_impossible_and_incomplete_rows_name_the_field_and_the_remedy(cells, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        run_from_row(ROW | cells)


def test_odd_but_clear_cells_are_understood():
    assert run_from_row(row(precision="BF16", recompute="Full")).plan.recompute == "full"
    assert run_from_row(row(hidden=5000)).model.heads == 40, "no default may be impossible"
    assert run_from_row(row(experts=1)).model.experts_per_token == 1
    assert run_from_row(row(experts=0, moe_ffn=0, experts_per_token=0)).model.experts == 0


SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")


def test_a_head_size_given_need_not_divide_the_width():
    assert run_from_row(row(heads=33, head_size=128)).model.attention_width == 33 * 128
    tied, own = (run_from_row(row(gated=0, **more)).model.tied for more in ({}, {"tied": 0}))
    assert tied and not own


# ---- hardware ----


def test_29_chips_each_with_a_source():
    with (data_dir() / "hardware.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == len(chips()) == 29
    assert all(row["source"] for row in rows)
    for chip in chips().values():
        assert all(5e13 < rate < 1e16 for _, rate in chip.flops), chip
        assert 1e10 < chip.link < 2e12 and 1e9 < chip.network <= chip.link, chip


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


def test_what_is_wrong_with_a_chip_is_said(tmp_path):
    with pytest.raises(InputError, match="did you mean 'H100-SXM-80GB'"):
        find_chip("H100-SXM-80")
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="tdp_W is 'much'"):
        number({"tdp_W": "much"}, "tdp_W")
    with pytest.raises(InputError, match="use fp16"):
        find_chip("V100-SXM2-32GB").peak("bf16")
