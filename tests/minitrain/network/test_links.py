from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.network.links import (
    KINDS,
    Link,
    LinkModel,
    Sweep,
    fit,
    from_bus_bandwidth,
    published_sweep,
    steps,
    wire_fraction,
)

SIZES = [2.0**k for k in range(10, 30, 2)]
kinds = st.sampled_from([kind for kind in KINDS if kind != "barrier"])


@settings(max_examples=60, deadline=None)
@given(kinds, st.integers(2, 64), st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-8))
def test_a_fit_finds_alpha_and_beta_again(kind, ranks, alpha, beta):
    link = Link(alpha, beta)
    found = fit(Sweep(kind, ranks, tuple((s, link.seconds(kind, s, ranks)) for s in SIZES)))
    assert found.alpha == pytest.approx(alpha, rel=1e-5)
    assert found.beta == pytest.approx(beta, rel=1e-5)


def test_steps_and_bytes_of_the_usual_algorithms():
    assert [steps(kind, 8) for kind in KINDS] == [1, 3, 14, 7, 7, 7, 3]
    assert wire_fraction("all_reduce", 8) == 1.75 and wire_fraction("all_gather", 8) == 0.875


def test_units_of_a_published_row():
    """16 GiB at 234.89 GB/s of bus bandwidth on 8 GPUs: 1.75 · 17.18e9 / 234.89e9 = 128 ms."""
    size, seconds = published_sweep("a100_8gpu_nvlink3").points[-1]
    assert size == 16 * 2**30
    assert seconds == pytest.approx(0.12800, rel=1e-4)
    assert size / seconds / 1e9 == pytest.approx(134.22, rel=1e-4), "algbw = busbw · N / 2(N-1)"


@pytest.mark.parametrize(
    "name,bandwidth,typical,worst",
    [("a100_8gpu_nvlink3", 235, 0.12, 0.37), ("h200_8gpu_nvls", 482, 0.08, 0.22)],
)
def test_fits_of_published_sweeps(name, bandwidth, typical, worst):
    """Two numbers over six decades of size: the error says how far the model goes."""
    sweep = published_sweep(name)
    link = fit(sweep)
    assert len(sweep.points) == 20
    errors = [abs(link.seconds(sweep.kind, s, sweep.ranks) / t - 1) for s, t in sweep.points]
    assert median(errors) < typical and max(errors) < worst
    assert 1e-9 / link.beta == pytest.approx(bandwidth, rel=0.12)
    assert 1e-6 < link.alpha < 10e-6


def test_reading_bus_bandwidth_as_algorithm_bandwidth_is_told_apart():
    rows = [(s, Link(3e-6, 1 / 200e9).seconds("all_reduce", s, 8)) for s in SIZES]
    right = from_bus_bandwidth("all_reduce", 8, [(s, 1.75 * s / t / 1e9) for s, t in rows])
    wrong = from_bus_bandwidth("all_reduce", 8, [(s, s / t / 1e9) for s, t in rows])
    assert 1e-9 / fit(right).beta == pytest.approx(200)
    assert 1e-9 / fit(wrong).beta == pytest.approx(200 / 1.75)


@pytest.mark.parametrize(
    "mistake,words",
    [
        (lambda: Link(-1e-6, 1e-9), "0 or more"),
        (lambda: fit(Sweep("all_reduce", 2, ((1.0, 1.0),))), "2 sizes or more"),
        (lambda: published_sweep("a100"), "known are"),
        (lambda: steps("all_reduced", 2), "did you mean 'all_reduce'"),
    ],
)
def test_mistakes_get_a_sentence(mistake, words):
    with pytest.raises(InputError) as caught:
        mistake()
    assert words in str(caught.value)


def test_kinds_may_have_their_own_link():
    model = LinkModel(Link(1e-6, 1e-9), {"all_reduce": Link(2e-6, 0.0)})
    assert model.seconds("all_reduce", 1e6, 2) == 4e-6
    assert (
        model.seconds("recv", 1e6, 2) == model.seconds("send", 1e6, 2) == pytest.approx(1e-6 + 1e-3)
    )
