from __future__ import annotations

import math

import numpy as np
import pytest

from minitrain.errors import InputError
from minitrain.monitoring.alerts.evaluate import Scrapes
from minitrain.monitoring.alerts.expressions import (
    at_least,
    growth_over,
    latest,
    mean_over,
    median_over,
    median_rank,
    now,
    seconds_of,
)


def scraped(*values: float, name: str = "loss", every: float = 15.0, ask=None) -> Scrapes:
    """One rank's values in turn; `ask` is evaluated at each scrape, as rules are."""
    look = Scrapes()
    for number, value in enumerate(values):
        look.add(every * number, {0: {name: value}})
        if ask is not None:
            ask.value(look)
    return look


def ranks(**compute: float) -> Scrapes:
    look = Scrapes()
    newest = {int(n[1:]): {"compute_seconds": v, "step_seconds": 2 * v} for n, v in compute.items()}
    look.add(60.0, newest)
    return look


def test_operators_are_those_of_vectors():
    look = ranks(r0=1.0, r3=3.0)
    compute, step = latest("compute_seconds"), latest("step_seconds")
    assert (step - compute).value(look) == {0: 1.0, 3: 3.0}
    assert (compute / step).value(look) == {0: 0.5, 3: 0.5}
    assert (compute * 2 + 1.0).value(look) == {0: 3.0, 3: 7.0}
    assert (compute > 2.0).value(look) == {3: 3.0}, "a comparison keeps what is true"
    assert (compute < step).value(look) == {0: 1.0, 3: 3.0}
    assert (now() - compute).value(look) == {0: 59.0, 3: 57.0}
    assert ((compute > 2.0) | (compute < 2.0)).value(look) == {3: 3.0, 0: 1.0}
    assert at_least(compute, 2.5).value(look) == {0: 2.5, 3: 3.0}
    zero = scraped(0.0)
    assert math.isnan((latest("loss") / latest("loss")).value(zero)[0])
    assert (latest("loss") / 0.0 + 1.0).value(scraped(1.0)) == {0: math.inf}


def test_a_rank_that_one_side_lacks_falls_out():
    look = Scrapes()
    look.add(1.0, {0: {"loss": 1.0, "mfu": 0.5}, 1: {"loss": 2.0}})
    assert (latest("loss") + latest("mfu")).value(look) == {0: 1.5}
    assert (latest("grad_norm") > 0.0).value(look) == {}


def test_nan_is_not_itself_and_is_nothing_else():
    look = scraped(math.nan)
    loss = latest("loss")
    assert loss.differs(loss).value(look).keys() == {0}
    assert not (loss > 0.0).value(look) and not loss.equals(loss).value(look)
    assert not loss.differs(loss).value(scraped(1.0))


def test_the_median_over_ranks_is_one_number_for_all():
    look = ranks(r0=1.0, r1=1.2, r2=1.1, r3=2.0)
    compute = latest("compute_seconds")
    assert median_rank(compute).value(look) == pytest.approx(1.15)
    slow = compute > median_rank(compute) * 1.1
    assert slow.value(look) == {3: 2.0}
    assert " on (run) group_left () (quantile by (run) (0.5, " in str(slow)


def test_windows_hold_the_scrapes_of_their_time():
    values = [5.0, 1.0, 2.0, 9.0, 4.0]  # at 0, 15, 30, 45, 60 s
    for window, inside in (("30s", values[2:]), ("1m", values), ("10m", values), ("1s", [4.0])):
        for over, reduced in (
            (median_over, np.median),
            (mean_over, np.mean),
            (growth_over, np.ptp),
        ):
            asked = over("loss", window)
            assert asked.value(scraped(*values, ask=asked))[0] == pytest.approx(reduced(inside))


def test_what_falls_out_of_every_window_is_not_kept():
    asked = mean_over("loss", "1m")
    look = scraped(*map(float, range(500)), ask=asked)
    assert len(look.kept["loss", 0].values) <= 10


def test_brackets_are_where_precedence_needs_them():
    a, b = latest("loss"), latest("mfu")
    assert str(a - b * 2) == "minitrain_loss - (minitrain_mfu * 2)"
    assert str((a - b) * 2) == "(minitrain_loss - minitrain_mfu) * 2"
    grown = growth_over("skipped", "10m") > 3.0
    assert str(grown).startswith("(max_over_time(minitrain_skipped_total[10m]) - ")


@pytest.mark.parametrize("text, seconds", [("30s", 30), ("5m", 300), ("1h", 3600)])
def test_times(text, seconds):
    assert seconds_of(text) == seconds


def test_what_nobody_knows_is_refused():
    for wrong in ("5", "m", "5d", ""):
        with pytest.raises(InputError, match="use one such as 30s"):
            seconds_of(wrong)
    with pytest.raises(InputError, match="no metric is called 'lost': known are"):
        latest("lost")
