from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.planning.money.prices import (
    YEAR_HOURS,
    Owning,
    break_even,
    months_to_pay,
    purchase_price,
)

H100 = Owning(purchase_usd=40_000, watts=700)


def test_owning_pays_where_the_chips_are_busy():
    share = break_even(H100, 3.0)
    assert 0 < share < 1
    assert break_even(H100, 1.0) > share, "cheap rent: it must be busier"
    assert break_even(H100, 0.01) == math.inf, "power alone costs more than the rent"


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


def test_an_hour_of_ones_own_is_cheaper_the_busier_it_is():
    assert H100.usd_per_busy_hour(0.9) < H100.usd_per_busy_hour(0.5)
    share = break_even(H100, 3.0)
    assert H100.usd_per_busy_hour(share) == pytest.approx(3.0)


def test_purchases_are_ranges_with_dates():
    price = purchase_price("H100-SXM-80GB")
    assert price.low < price.typical < price.high and "2024-08 to 2026-05" in price.source


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: Owning(0, 700), "purchase price and years over 0"),
        (lambda: Owning(1, 700, pue=0.5), "a PUE of 1 or more"),
        (lambda: break_even(H100, 0), "rent is 0"),
        (lambda: months_to_pay(H100, 3, 1.5), "busy is 1.5"),
        (lambda: purchase_price("L40S"), "--purchase 40000"),
    ],
)
def test_what_is_wrong_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call()
