"""A mesh that cannot work: the reason, and the nearest that can."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from minitrain.apps.train.mesh_check import (
    FLAGS,
    MeshRequest,
    check_mesh,
    distance,
    nearest,
    reasons,
)
from minitrain.errors import InputError
from minitrain.model.config import PRESETS
from minitrain.parallel.hybrid.model import AXES

DENSE, EXPERTS = PRESETS["1M"], PRESETS["1M-moe"]  # 4 heads, 2 key/value heads, 4 layers, 448


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"tp": 3}, "--tp 3 does not divide the model's 4 heads: use --tp 2"),
        ({"config": replace(DENSE, ffn_size=450), "tp": 4}, "the 450 features .*: use --tp 2"),
        ({"pp": 8}, "--pp 8 makes 8 stages, and the model has 4 layers: use --pp 4"),
        (
            {"pp": 4, "schedule": "interleaved", "chunks": 2},
            "--pp 4 with --chunks 2 makes 8 stages.* 4 layers: use --pp 2",
        ),
        ({"pp": 2, "chunks": 2}, "--chunks 2 is not possible with --schedule 1f1b"),
        ({"ep": 2}, "the model has none: use --preset 1M-moe, or --ep 1"),
        ({"config": EXPERTS, "ep": 3, "batch": 8}, "the model's 8 experts: use --ep 2$"),
        ({"cp": 4, "length": 100}, "100 cannot be cut into 8 .*: use --length 96, or --cp 2"),
        ({"cp": 2, "sequence": True}, "there is one: use no --sequence, or --tp 2 --cp 1"),
        ({"dp": 3}, "--batch 8 does not divide into rows for 3 ranks x 1 .*: use --batch 9, or --dp 2"),
        ({"config": EXPERTS, "dp": 4, "ep": 4}, "for 16 ranks x 1 .*: use --batch 16, or --ep 2"),
        ({"tp": 2, "ranks": 4}, "--tp 2 makes a mesh of 2 ranks, and there are 4: use 2 ranks, or --dp 2"),
    ],
)  # fmt: skip
def test_each_reason_has_its_answer(given, answer):
    config = given.pop("config", DENSE)
    with pytest.raises(InputError, match=answer) as told:
        check_mesh(config, MeshRequest(**given))
    assert "\n" not in str(told.value)


def test_what_can_work_is_let_through():
    for sizes in ({}, {"tp": 4}, {"dp": 8}, {"pp": 4}, {"cp": 32}, {"dp": 2, "tp": 2, "pp": 2}):
        check_mesh(DENSE, MeshRequest(**sizes))  # tp 4: two ranks share a key/value head
    check_mesh(EXPERTS, MeshRequest(dp=2, ep=4))
    check_mesh(DENSE, MeshRequest(dp=2, tp=2, ranks=4))


def test_the_nearest_can_work_and_none_that_can_is_nearer():
    """Every mesh of at most as many places, tried one by one, over random requests."""
    draw = random.Random(0)
    for _ in range(60):
        config = draw.choice([DENSE, EXPERTS, replace(DENSE, heads=6, kv_heads=3, head_size=16)])
        sizes = {axis: draw.choice([1, 1, 1, 1, 2, 3]) for axis in FLAGS}
        rows, length = draw.choice([4, 6, 12]), draw.choice([24, 30, 32])
        sequence = draw.random() < 0.3
        request = MeshRequest(**sizes, batch=rows, length=length, sequence=sequence)
        able = [other for other in all_meshes(request) if not list(reasons(config, other))]
        near = nearest(config, request)
        assert (near is None) == (not able)
        if near is not None:
            check_mesh(config, near)
            assert distance(request, near) == min(distance(request, other) for other in able)


def all_meshes(request: MeshRequest) -> list[MeshRequest]:
    found = [{}]
    for axis in FLAGS:
        found = [
            {**sizes, axis: n}
            for sizes in found
            for n in range(1, request.places // math.prod(sizes.values()) + 1)
        ]
    return [replace(request, **sizes) for sizes in found]


def test_every_axis_of_a_mesh_has_its_flag():
    assert sorted(FLAGS) == sorted(AXES)
