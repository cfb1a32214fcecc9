from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.zero.state import gathered_state, load_state, sharded_state
from minitrain.ranks.launch import launch

from . import zero_toys as toys


def save(group):
    zero, optimizer = toys.sharded(group, 3)
    toys.train(group, zero, optimizer, 3)
    return sharded_state(zero, optimizer), gathered_state(zero, optimizer)


def resume(group, sharded, gathered):
    runs = []
    for stage, states in ((1, sharded), (2, [gathered]), (3, sharded[::-1])):
        zero, optimizer = toys.sharded(group, stage)
        load_state(zero, optimizer, states)
        assert optimizer.param_groups[0]["lr"] == 1e-2
        runs.append(toys.train(group, zero, optimizer, 2, first=3))
    with pytest.raises(InputError, match="all the ranks that saved"):
        load_state(zero, optimizer, sharded[:1])
    return runs


def test_saved_by_four_ranks_and_resumed_by_three_and_one():
    saved = launch(save, ranks=4, timeout=60)
    sharded, gathered = [own for own, _ in saved], saved[0][1]
    elements = sum(p["exp_avg"].numel() for own in sharded for p in own["pieces"].values())
    assert elements == sum(p.numel() for p in toys.toy().parameters()), "each element once"
    model = toys.toy()
    optimizer = toys.ADAMW(toys.parameter_groups(model, 0.1))
    toys.one_process(3, model=model, optimizer=optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(gathered["pieces"][name]["weight"], p.detach())
        torch.testing.assert_close(
            gathered["pieces"][name]["exp_avg"], optimizer.state[p]["exp_avg"]
        )
        assert gathered["pieces"][name]["step"] == 3
    want = toys.one_process(2, 3, model, optimizer)
    for ranks in (3, 1):
        for runs in launch(resume, sharded, gathered, ranks=ranks, timeout=60):
            for got in runs:
                toys.assert_follows(got, want)
