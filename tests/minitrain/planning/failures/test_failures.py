"""The law is the published table; the intervals are the best that a simulation finds; a replay's time
adds up, and is Llama 3's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.planning.failures.intervals import (
    best_simulated_interval,
    daly_interval,
    effective_share,
    lost_share,
    simulated_shares,
    young_interval,
)
from minitrain.planning.failures.replay import (
    LLAMA3_CHIPS,
    LLAMA3_DAYS,
    Cause,
    Law,
    Level,
    Site,
    llama3_law,
    llama3_replay,
    mean_account,
    replay,
)

LAW = llama3_law()
BETWEEN = LAW.between(LLAMA3_CHIPS)


def test_the_law_is_table_5():
    hours = LLAMA3_DAYS * 24 * LLAMA3_CHIPS
    counts = {cause.component: cause.per_chip_hour * hours for cause in LAW.causes}
    assert sum(counts.values()) == pytest.approx(419) and len(counts) == 18
    assert counts["Faulty GPU"] == pytest.approx(148) and counts["SSD"] == pytest.approx(3)
    assert LAW.chip_hours == pytest.approx(50677.0, rel=1e-5)
    assert pytest.approx(3.0931, rel=1e-4) == BETWEEN / 3600
    gpu = sum(c.per_chip_hour for c in LAW.causes if c.category == "GPU") * hours
    assert gpu / 419 == pytest.approx(0.64, abs=0.005), "58.7% printed, with 30.1% for 148 of 419"


def test_what_is_drawn_has_the_laws_mean_and_shares():
    gaps = LAW.gaps(LLAMA3_CHIPS, 200_000)
    assert gaps.mean() == pytest.approx(BETWEEN, rel=0.01)
    assert gaps.std() == pytest.approx(BETWEEN, rel=0.02), "exponential"
    early = Law(LAW.causes, shape=0.7).gaps(LLAMA3_CHIPS, 200_000)
    assert early.mean() == pytest.approx(BETWEEN, rel=0.02) and early.std() > 1.3 * BETWEEN
    drawn = [cause.component for cause in LAW.draw(50_000)]
    assert drawn.count("Faulty GPU") / 50_000 == pytest.approx(148 / 419, abs=0.01)
    assert LAW.draw(20, seed=3) == LAW.draw(20, seed=3) != LAW.draw(20, seed=4)
    with pytest.raises(InputError, match="give one cause or more"):
        Law(())


@pytest.mark.parametrize("save", [15.0, 60.0])
def test_dalys_interval_is_within_two_percent_of_the_best_found_and_nearer_than_youngs(save):
    gaps = LAW.gaps(LLAMA3_CHIPS, 1_000_000, seed=1)
    best = best_simulated_interval(gaps, save, 300.0)
    daly, young = daly_interval(save, BETWEEN), young_interval(save, BETWEEN)
    assert daly == pytest.approx(best, rel=0.02)
    assert abs(daly / best - 1) < abs(young / best - 1)
    share = simulated_shares(gaps, save, 300.0, np.array([daly]))[0]
    assert share == pytest.approx(effective_share(save, 300.0, BETWEEN, daly), abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 500), st.floats(0, 1000), st.floats(2000, 1e6), st.floats(0.3, 3))
def test_dalys_interval_is_the_best_of_the_exact_share(save, restart, between, factor):
    best = daly_interval(save, between)
    exact = effective_share(save, restart, between, best)
    assert exact >= effective_share(save, restart, between, factor * best) * (1 - 2e-3)
    assert 0 < exact < 1
    lost = lost_share(save, restart, between, best)
    assert exact == pytest.approx(1 - lost, abs=0.5 * lost**2), "first order: the rest is second"


def test_a_save_longer_than_failures_are_apart():
    assert daly_interval(100.0, 40.0) == 40.0
    with pytest.raises(InputError, match="give over 0"):
        effective_share(1.0, 1.0, 10.0, 0.0)


def test_llama_3s_54_days_and_their_effective_time():
    accounts = [llama3_replay(seed=seed) for seed in range(40)]
    mean = mean_account(accounts)
    assert mean.interruptions == pytest.approx(466, rel=0.03)
    assert mean.effective == pytest.approx(0.90, abs=0.02)
    for account in accounts:
        assert account.seconds == pytest.approx(LLAMA3_DAYS * 86400, rel=1e-9), "time adds up"
    for minutes in (6, 11):
        site = Site(restart_seconds=60 * minutes, planned=47)
        found = mean_account([llama3_replay(site=site, seed=seed) for seed in range(40)])
        assert found.effective == pytest.approx(0.90, abs=0.02)


def test_a_replay_of_one_level_is_the_exact_share():
    site, level = Site(restart_seconds=200.0), Level(500.0, 20.0, 100.0)
    law = Law((Cause("software", "Dependency", LAW.causes[0].per_chip_hour * 3),))
    between = law.between(LLAMA3_CHIPS)
    found = mean_account(
        [replay(law, LLAMA3_CHIPS, 200, (level,), site, seed=s) for s in range(20)]
    )
    assert found.effective == pytest.approx(effective_share(20.0, 300.0, between, 500.0), abs=0.006)


def effective(levels, site, seeds=20):
    found = [replay(LAW, LLAMA3_CHIPS, 54, levels, site, seed=seed) for seed in range(seeds)]
    return mean_account(found)


def test_several_levels_beat_each_alone():
    disk, memory = Level(1800.0, 40.0, 120.0), Level(60.0, 0.3, 5.0)
    own = Level(60.0, 0.2, 5.0, survives_node=False)
    site = Site()
    both, alone = effective((disk, memory), site), effective((disk,), site)
    assert both.effective > alone.effective + 0.02 and both.redone < 0.2 * alone.redone
    half = effective((disk, own), site)
    assert alone.redone > half.redone > both.redone, "a process's memory is lost with its node"
    with pytest.raises(InputError, match="no level survives a node"):
        effective((own,), site)


def test_spare_nodes():
    waits = [
        effective((Level(578.0, 15.0),), Site(spare_nodes=count, repair_hours=72)).waiting
        for count in (0, 2, 8, 32, 128)
    ]
    assert waits == sorted(waits, reverse=True) and waits[0] > 0 and waits[-1] == 0
    never = effective((Level(578.0, 15.0),), Site(spare_nodes=None)).waiting
    assert never == 0
