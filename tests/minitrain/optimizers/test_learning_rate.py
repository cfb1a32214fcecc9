from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.optimizers.learning_rate import warmup_cosine


def test_known_points():
    rates = [warmup_cosine(step, 100, 10, peak=1.0, floor=0.1) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)  # 1/10 of the peak, not 0
    assert rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)  # half-way down the cosine
    assert rates[100] == 0.1


def test_equals_torchs_cosine_after_the_warmup():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3.0)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.3)
    for step in range(50):
        ours = warmup_cosine(20 + step, total=70, warmup=20, peak=3.0, floor=0.3)
        assert ours == pytest.approx(oracle.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        oracle.step()


@given(
    total=st.integers(1, 300),
    part=st.floats(0, 0.99),
    peak=st.floats(1e-6, 1),
    ratio=st.floats(0, 1),
)
def test_rises_then_falls_within_its_bounds(total, part, peak, ratio):
    warmup, floor = part * total, ratio * peak
    rates = [warmup_cosine(step, total, warmup, peak, floor) for step in range(total + 3)]
    turn = math.ceil(warmup)
    assert all(a <= b for a, b in itertools.pairwise(rates[:turn]))
    assert all(a >= b - 1e-15 for a, b in itertools.pairwise(rates[turn:]))
    assert max(rates) <= peak * (1 + 1e-12)
    assert min(rates[turn:]) >= floor * (1 - 1e-12)
    assert rates[-1] == floor


def test_before_the_length_of_the_run_is_known_the_rate_is_zero():
    assert warmup_cosine(0, math.inf, math.inf, peak=1.0) == 0.0
