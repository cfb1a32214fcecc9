from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.planning.money.cost import (
    LLAMA3_CHIP_HOURS,
    Choice,
    Failures,
    Site,
    Training,
    all_options,
    best_interval,
    cheapest_by,
    chip_hours,
    cost_of,
    goodput,
    pareto,
)
from minitrain.planning.money.prices import (
    YEAR_HOURS,
    Owning,
    Price,
    break_even,
    months_to_pay,
    offers,
    price_of,
)
from minitrain.planning.run import Plan
from minitrain.planning.scaling.laws import (
    CHINCHILLA_REFITTED,
    KAPLAN,
    PF_DAY,
    fit_frontier,
    within_budget,
)
from minitrain.planning.step.step import estimate

from ..cases import LLAMA, run_with

STEP = estimate(run_with(Plan(dp=8, zero=2), LLAMA, "H100-SXM-80GB"))


def test_hours_money_energy_carbon_are_products():
    cost = cost_of(STEP, 1e12, Price(2, 3, 4, "test"), Site(pue=1.5, grams_per_kwh=100))
    hours = 1e12 / STEP.tokens_per_second * 8 / 3600
    assert chip_hours(1e12, STEP) == pytest.approx(hours)
    assert cost.days == pytest.approx(hours / 8 / 24)
    assert (cost.usd.low, cost.usd.high) == pytest.approx((2 * hours, 4 * hours))
    assert cost.kwh == pytest.approx(hours * 0.7 * 1.5)
    assert cost.tonnes_co2 == pytest.approx(cost.kwh * 1e-4)


def test_llama_3s_goodput():
    """419 interruptions in 54 days on 16,384 chips, over 90% effective."""
    assert pytest.approx(50677, rel=1e-4) == LLAMA3_CHIP_HOURS
    assert 0.90 < goodput(Failures(), 16384) < 0.99


@settings(max_examples=50, deadline=None)
@given(st.floats(1, 300), st.integers(8, 20000), st.floats(0.3, 3))
def test_youngs_interval_is_the_best(save, chips, factor):
    failures = Failures(save_seconds=save)
    best = best_interval(failures, chips)
    assert best == pytest.approx(math.sqrt(2 * save * LLAMA3_CHIP_HOURS * 3600 / chips))
    assert goodput(failures, chips) >= goodput(failures, chips, factor * best) - 1e-12


def test_pareto_front():
    places = {"a": (1, 9), "b": (2, 5), "c": (3, 6), "d": (4, 1), "e": (2, 7)}
    choices = [Choice(label, *place) for label, place in places.items()]
    assert [choice.label for choice in pareto(choices)] == ["a", "b", "d"]
    assert cheapest_by(choices, 3).label == "b"


def test_kaplan_and_chinchilla():
    assert KAPLAN.parameters(PF_DAY) == pytest.approx(1.3e9)
    frontier = fit_frontier(0.5, [(1e9, 20.2e9), (67e9, 1.5e12)])
    assert frontier.tokens(frontier.flops_for(70e9)) / 70e9 == pytest.approx(21, rel=0.1)
    assert KAPLAN.parameters(1e24) > 2 * frontier.parameters(1e24), "Kaplan's models are larger"


def test_serving_makes_models_smaller_and_training_longer():
    """Sardana et al. 2024; without any it is the law's optimum."""
    best = CHINCHILLA_REFITTED.optimum(1e23)
    assert within_budget(1e23, 0).parameters == pytest.approx(best.parameters, rel=1e-3)
    none, some, much = (within_budget(1e23, served) for served in (0, 1e12, 1e13))
    assert none.parameters > some.parameters > much.parameters
    assert none.tokens / none.parameters < some.tokens / some.parameters


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: cost_of(STEP, 0), "tokens is 0"),
        (lambda: Site(pue=0.9), "PUE is 0.9"),
        (lambda: Price(3, 2, 4, ""), "low <= typical"),
        (lambda: within_budget(0, 0), "over 0 FLOPs"),
        (lambda: price_of("TPUv4"), "has no on-demand price for TPUv4"),
        (lambda: goodput(Failures(chip_hours=1), 10_000), "nothing would be trained"),
        (lambda: cheapest_by([Choice("a", 1, 9)], 0.5), r"the fastest takes 1\.0: a"),
        (lambda: list(all_options(TRAINING, ["B200-SXM"], [64], "spot", Site())), "no spot price"),
        (lambda: Owning(0, 700), "purchase price and years over 0"),
        (lambda: break_even(H100, 0), "rent is 0"),
        (lambda: months_to_pay(H100, 3, 1.5), "busy is 1.5"),
    ],
)
def test_what_is_wrong_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call()


# ---- front ----


TRAINING = Training(LLAMA, seq=4096, batch=256, tokens=1e11)


@pytest.fixture(scope="module")
def options():
    found = all_options(TRAINING, ["A100-SXM-80GB", "H100-SXM-80GB"], [16, 64], "on-demand", Site())
    return [option for some in found for option in some]


def test_each_offer_of_each_chip_and_size(options):
    count = sum(len(offers(chip, "on-demand")) for chip in ("A100-SXM-80GB", "H100-SXM-80GB"))
    assert len(options) == 2 * count
    for option in options:
        assert option.usd == pytest.approx(option.cost.chip_hours * option.offer.usd)
        assert option.days == option.cost.days and option.cost.goodput < 1


def test_the_front_trades_days_for_dollars(options):
    front = pareto(options)
    assert len(front) >= 2
    days, usd = [o.days for o in front], [o.usd for o in front]
    assert days == sorted(days) and usd == sorted(usd, reverse=True)
    assert min(usd) == min(o.usd for o in options) and min(days) == min(o.days for o in options)


# ---- ownership ----


H100 = Owning(purchase_usd=40_000, watts=700)


def test_owning_pays_where_the_chips_are_busy():
    share = break_even(H100, 3.0)
    assert 0 < share < 1
    assert break_even(H100, 1.0) > share, "cheap rent: it must be busier"
    assert break_even(H100, 0.01) == math.inf, "power alone costs more than the rent"


@settings(deadline=None)
@given(st.floats(1.2, 20), st.floats(5_000, 80_000))
def test_at_the_break_even_both_cost_the_same(rent, purchase):
    owning = Owning(purchase, watts=700)
    share = break_even(owning, rent)
    assert owning.usd(4.0, share) == pytest.approx(rent * share * 4 * YEAR_HOURS)


def test_months_and_shares_agree():
    """Busy for exactly the break-even share, a chip has paid for itself at the end of its life."""
    assert months_to_pay(H100, 3.0, break_even(H100, 3.0)) == pytest.approx(48)
    assert months_to_pay(H100, 3.0, 1.0) < 48
    assert months_to_pay(H100, 3.0, 0.1) == math.inf
