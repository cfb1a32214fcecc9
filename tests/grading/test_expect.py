"""What a check says: compact, with the place, the values and the likely mistake."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.recorded import Word
from minitrain.lab.grading.variants import cause, variant

from ..labs.probes.in_turn import in_turn


def said(call, *args, **options) -> str:
    with pytest.raises(CheckFailed) as failure:
        call(*args, **options)
    return str(failure.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_another_order_of_additions_is_equal(dtype):
    x = torch.randn(1000, dtype=dtype)
    expect.equal(x.sum() + 0 * x[:1], x.flip(0).cumsum(0)[-1:] + 0 * x[:1], tol=1e-1)
    a, b = torch.randn(2, 50, dtype=dtype)
    expect.equal((a + b) + a, a + (b + a))


def test_a_small_error_is_an_error():
    x = torch.ones(5, dtype=torch.float64)
    text = said(expect.equal, x + torch.tensor([0, 0, 1e-6, 0, 0]), x, what="rank 2 of 3")
    assert text.startswith(
        "rank 2 of 3: 1 of 5 elements differ, first at [2]: got 1.000001, expected 1;"
    )
    assert "largest error 1e-06" in text


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), "shape (2, 3) float32, expected shape (3, 2) float32"),
        (torch.ones(2), torch.ones(2).double(), "float32, expected shape (2,) float64"),
        (None, torch.ones(2), "is a `return` missing?"),
        ([1, 2], [1, 2, 3], "got 2 items, expected 3"),
        ([1], [1, 2, 3], "got 1 item, expected 3"),
        ([1, 5, 3], [1, 2, 3], "item 1: got 5, expected 2"),
        ({"a": 1}, {"b": 1}, "missing ['b'], not expected ['a']"),
        ({"a": 1}, {"a": 2}, "'a': got 1, expected 2"),
        ("ring", "tree", "got 'ring', expected 'tree'"),
        (True, 1, "got True, expected 1"),
        (3.0, 4.0, "got 3, expected 4"),
        (torch.tensor([float("nan")]), torch.ones(1), "got nan, expected 1"),
        (7, torch.ones(1), "got 7, expected [1]"),
    ],
)
def test_what_differs_is_named(got, want, words):
    assert words in said(expect.equal, got, want)


def test_the_hint_that_fits_ends_the_message():
    x = [torch.randn(4) for _ in range(3)]
    hints = [(sum(x), "that is the sum"), (sum(x) / 3, "that is the average: do not divide")]
    text = said(expect.equal, sum(x) / 3, x[0], hints=hints)
    assert text.endswith("that is the average: do not divide") and "that is the sum" not in text
    assert "that is" not in said(expect.equal, torch.zeros(4), x[0], hints=hints)


def test_close_names_its_tolerance():
    expect.close(1.04, 1.0, 0.05)
    assert "within 5%" in said(expect.close, 1.06, 1.0, 0.05)
    assert "within" not in said(expect.close, 1.06, 1.0, 1e-6), "that is for rounding only"


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (4.0, 2.0, "too large, by about 2 x"),
        (1.0, 1.74e9, "too small, by about 2,000,000,000 x"),
        (1.3, 2.0, "too small, by about 1.5 x"),
        (2.1, 2.0, "a little too large"),
        (-3, 2, "too small"),
        (True, 3.5, "a number is asked for"),
        ("tree", 3.5, "a number is asked for"),
        (3.5, "tree", "a word is asked for"),
        ("ring", "tree", "got 'ring'"),
        ("yes", False, "True or False is asked for"),
        (False, True, "got False"),
        ([1, 9], [1, 3], "item 1: got 9: too large, by about 3 x"),
        ([1], [1, 3], "got 1 item: 2 are asked for"),
    ],
)
def test_a_miss_does_not_say_what_is_expected(got, want, words):
    with pytest.raises(CheckFailed) as failure:
        expect.equal(got, want, what="x", hints=[(got, "the hint")])
    assert failure.value.secretive.endswith(f"{words}\nthe hint")
    assert "expected" not in failure.value.secretive


def test_words_are_equal_whatever_their_case_and_blanks():
    typed = Word(" All  Reduce")
    assert typed in ["all reduce"] and typed in {"all reduce"}
    assert (typed != "ALL REDUCE") is False and typed != "allreduce" and typed != 3


def test_identical_forgives_no_bit():
    x = torch.randn(9, dtype=torch.float64)
    expect.identical(x.clone(), x)
    assert "bit for bit" in said(expect.identical, x * (1 + 1e-15), x)


def test_equal_accepts_what_it_must():
    expect.equal(torch.tensor(3), 3)
    expect.equal((1, 2), [1, 2])
    expect.equal(
        torch.tensor([float("nan"), float("inf")]), torch.tensor([float("nan"), float("inf")])
    )
    expect.equal(torch.empty(0), torch.empty(0))
    expect.equal(0.1 + 0.2, 0.3)
    expect.that(True, "never said")
    assert said(expect.that, False, "too many messages") == "too many messages"


@pytest.mark.parametrize("records", [{}, {"sweep": []}, {"other": [{"bytes": 1}]}])
def test_an_answer_is_read_off_a_table_that_was_recorded(records):
    assert expect.recorded({"sweep": [{"bytes": 1}]}, "sweep") == [{"bytes": 1}]
    assert "record the experiment 'sweep' first" in said(expect.recorded, records, "sweep")


def left_alone(f, *calls):
    """What is said of f on these calls in a row, as the probe beside a submission makes them."""
    expect.left_alone(in_turn(f, calls), calls, ["x"])


KEPT = torch.zeros(3)  # what a submission keeps between its calls


@pytest.mark.parametrize(
    "f, words",
    [
        (lambda x: x.add_(1), "changed its input `x`"),
        (lambda x: x[1:], "shares its memory with an input"),
        (lambda x: {"sum": [x.view(3, 1)]}, "shares its memory with an input"),
        (lambda x: KEPT.copy_(x), "what call 1 had returned was changed by a later call"),
    ],
)
def test_calls_in_a_row_leave_alone_what_is_not_theirs(f, words):
    assert words in said(left_alone, f, (torch.randn(3),), (torch.randn(3),))


def test_calls_in_a_row_may_return_what_they_made():
    left_alone(lambda x: [x + 1, None, {"n": x.numel()}], (torch.ones(3),), (torch.empty(0),))
    nothing = torch.full((2,), float("nan")), torch.tensor(float("inf"))
    left_alone(lambda x: x * 1, *[(x,) for x in nothing])


def test_a_row_is_found_by_its_columns():
    table = [{"way": "ring", "ranks": n, "bytes": 10 * n} for n in (2, 4)]
    assert expect.rows(table, "way", "ranks")["ring", 4]["bytes"] == 40
    assert "no row of 8" in said(expect.rows(table, "ranks").__getitem__, 8)


def test_nothing_is_near_infinity():
    assert "expected inf" in said(expect.close, 7.0, float("inf"))


def doubled(x):
    """Twice x."""
    return 2 * x


def test_a_mistake_is_the_reference_with_a_piece_of_its_text_replaced():
    assert variant(f"{__name__}:doubled")(3) == 6
    assert variant(f"{__name__}:doubled", "2 * x", "2 + x")(4) == 6
    with pytest.raises(AssertionError, match="0 times, not once"):
        variant(f"{__name__}:doubled", "3 * x", "x")


def test_mistakes_that_give_what_was_got_are_named():
    mistakes = [
        (("2 *", "2 +"), "added"),
        (("2 * x", "x * x"), "squared"),
        (("2 * x", "1 // 0"), ""),
    ]
    found = partial(cause, reference=f"{__name__}:doubled", mistakes=mistakes)
    assert found([5, 3], call=lambda f: [f(3), f(1)]) == "added"
    assert found([4], call=lambda f: [f(2)]) == "added, or squared"
    assert found([7], call=lambda f: [f(2)]) == ""


def test_calls_that_are_right_alone_kept_something():
    def right(cases):
        expect.equal([2 * cases[0]] * len(cases), [2 * case for case in cases])

    assert "each of these calls is right alone" in said(expect.in_a_row, right, [1, 2])
    assert "expected 4" in said(expect.in_a_row, lambda cases: expect.equal(3, 4), [2])
