from __future__ import annotations

import pytest

from minitrain.errors import InputError
from minitrain.planning.money.cost import Site, Training, all_options, best_step, pareto
from minitrain.planning.money.prices import offers

from ..cases import LLAMA

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


def test_what_does_not_fit_is_left_out():
    assert best_step(TRAINING, "A100-SXM-40GB", 1) is None
    assert list(all_options(TRAINING, ["L4"], [1], "on-demand", Site())) == [[]]


def test_a_chip_without_a_price_is_refused():
    with pytest.raises(InputError, match="no spot price for B200-SXM: it has"):
        list(all_options(TRAINING, ["B200-SXM"], [64], "spot", Site()))
