"""Calls in a row, and checks that rest on the one above: which cause is named."""

from __future__ import annotations

from functools import partial

import pytest

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.verdicts import as_above, below, each, told_above


class Submission:
    """It is only asked for."""


def doubled(case, call):
    expect.equal(call, 2 * case)


def fails(submission):
    expect.equal(1, 2, what="the value", hints=[(1, "that is the first")])


def passes(submission):
    pass


def test_calls_that_are_right_come_back():
    assert each([1, 2], lambda cases: [2 * case for case in cases], doubled) == [2, 4]


def test_a_call_that_is_right_alone_kept_something():
    def run(cases):
        return [2 * cases[0]] * len(cases)  # the first one's, for all

    with pytest.raises(CheckFailed, match="call 2 of 2 in a row is wrong, and the same call alone"):
        each([1, 2], run, doubled)


def test_a_call_that_is_wrong_alone_is_told_what_is_wrong():
    with pytest.raises(CheckFailed, match="got 3, expected 4"):
        each([2], lambda cases: [3 for _ in cases], doubled)


def test_what_is_wrong_above_is_told_in_one_line():
    with pytest.raises(CheckFailed) as raised, below(fails, Submission()):
        expect.equal(1, 3, what="the gradient")
    assert str(raised.value) == "as above: that is the first"


def test_two_checks_below_say_it_once():
    def second(submission):
        with below(fails, submission):
            expect.equal(1, 3, what="the gradient")

    with pytest.raises(CheckFailed) as raised, below(second, Submission()):
        expect.equal(1, 3, what="the bytes")
    assert str(raised.value) == "as above: that is the first"


def test_the_check_above_is_asked_once():
    asked, one = [], Submission()

    def counts(submission):
        asked.append(submission)
        fails(submission)

    for what in ("the gradient", "the bytes"):
        with pytest.raises(CheckFailed, match="as above: that is the first"), below(counts, one):
            expect.equal(1, 3, what=what)
    assert asked == [one]


def test_what_both_ask_is_told_above():
    with pytest.raises(CheckFailed) as raised, told_above():
        expect.that(False, "it used all_gather")
    assert str(raised.value) == "as above: it used all_gather"


@pytest.mark.parametrize("above", [fails, passes])
def test_a_cause_of_its_own_stays(above):
    with pytest.raises(CheckFailed, match="it is divided"), below(above, Submission()):
        expect.equal(1, 2, what="the gradient", hints=[(1, "it is divided")])


def test_where_the_check_above_passes_the_words_stay():
    with (
        pytest.raises(CheckFailed, match="the gradient: got 1, expected 3"),
        below(passes, Submission()),
    ):
        expect.equal(1, 3, what="the gradient")


def test_a_check_above_that_has_no_result_says_nothing():
    def dies(submission):
        raise SubmissionFailed("died", "it died")

    with (
        pytest.raises(CheckFailed, match="the gradient: got 1, expected 3"),
        below(dies, Submission()),
    ):
        expect.equal(1, 3, what="the gradient")


def test_no_result_is_no_matter_of_the_check_above():
    with pytest.raises(SubmissionFailed, match="deadlock"), below(fails, Submission()):
        raise SubmissionFailed("deadlock", "deadlock: all wait")


def raises(failure):
    raise failure


def test_what_an_earlier_check_asks_for_is_told_as_such():
    own, slow = CheckFailed("this"), SubmissionFailed("timeout", "no answer")
    earlier = partial(expect.equal, 3, 4, what="the answer")
    with pytest.raises(CheckFailed) as failure, as_above(earlier):
        raises(own)
    assert str(failure.value) == "as above: the answer: got 3, expected 4"
    assert "expected 4" not in failure.value.secretive
    for case, cause in ((own, lambda: None), (own, partial(raises, slow)), (slow, earlier)):
        with pytest.raises(CheckFailed) as failure, as_above(cause):
            raises(case)
        assert failure.value is case
    with as_above(earlier):
        pass
