from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.finetuning.many import AdapterBank, Rows
from minitrain.finetuning.model import adapt
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

from ..model.peers import SMALL, random_tokens
from .peft_peers import shaken

METHODS = {
    "low": ("lora", {"rank": 2, "targets": "q,v"}),
    "high": ("rslora", {"rank": 7}),
    "mid": ("lora", {"rank": 5, "alpha": 3.0, "targets": "down"}),
    "pissa": ("pissa", {"rank": 3}),
}
LARGE, TWO = 10**7, ["low", "high"]


def fresh():
    return build(SMALL, dtype=torch.float64, seed=1)


def single(name):
    """The model with this adapter alone, by `adapt`."""
    if name is None:
        return fresh()
    method, options = METHODS[name]
    return shaken(adapt(fresh(), method, **options))


def bank_of(names, budget=LARGE):
    bank = AdapterBank(fresh(), budget)
    for name in names:
        bank.add(name, single(name))
    return bank


def tokens(batch, length=9):
    torch.manual_seed(5)
    return random_tokens(SMALL, batch, length)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 9])
def test_each_row_is_its_single_run_bit_for_bit(length):
    """Four adapters and none, against five single runs in the same shapes: the row at its place,
    and nobody and nothing in the others. BLAS sums in another order for other shapes, so that one
    row alone, in the bank or by `adapt`, has its last bits otherwise."""
    names = ["high", None, "low", "mid", "pissa"]
    bank, text = bank_of(METHODS), tokens(len(names), length)
    with bank.rows(names):
        mixed = bank.model(text)
    for i, name in enumerate(names):
        alone = torch.zeros_like(text)
        alone[i] = text[i]
        with bank.rows([name if place == i else None for place in range(len(names))]):
            assert torch.equal(mixed[i], bank.model(alone)[i]), name
        with bank.rows([name] * len(names)):
            assert torch.equal(mixed[i], bank.model(text)[i]), name
        with bank.rows([name]):
            own = bank.model(text[i : i + 1])[0]
        for found in (own, single(name)(text[i : i + 1])[0]):
            torch.testing.assert_close(mixed[i], found, rtol=0, atol=1e-12)
    for a, b in ((0, 1), (0, 2), (1, 4)):
        assert (single(names[a])(text[:1]) - single(names[b])(text[:1])).abs().max() > 1e-3


@torch.no_grad()
def test_without_rows_and_after_it_is_the_bare_model():
    bank, text = bank_of(["low"]), tokens(2)
    want = fresh()(text)
    assert torch.equal(bank.model(text), want)
    with bank.rows([None, None]):
        assert torch.equal(bank.model(text), want)
    with bank.rows(["low", None]):
        assert not torch.equal(bank.model(text)[0], want[0])
        assert torch.equal(bank.model(text)[1], want[1])
    assert torch.equal(bank.model(text), want)
    left = bank.remove_from_model().named_parameters()
    assert [n for n, _ in left] == [n for n, _ in fresh().named_parameters()]


@torch.no_grad()
def test_pages_come_and_go_and_the_numbers_stay():
    """Room for 8 ranks: two small adapters, or the large one alone."""
    page = bank_of([]).pool.page_bytes
    bank, text = bank_of(METHODS, budget=page * 9), tokens(2)
    large, want = bank_of(METHODS), {}
    for name in METHODS:
        with large.rows([name, None]):
            want[name] = large.model(text)[0]
    order = ["low", "mid", "high", "low", "pissa", "mid", "low", "high"]
    for name in order * 3:
        with bank.rows([name, None]):
            assert torch.equal(bank.model(text)[0], want[name]), name
        used = [p for pages in bank.pool.table.values() for p in pages]
        assert sorted(used + bank.pool.free) == list(range(1, 9))
    assert bank.pool.bytes_held == 9 * page


def test_who_was_used_longest_ago_leaves():
    page = bank_of([]).pool.page_bytes
    bank = bank_of(["low", "mid", "pissa"], budget=page * 14)  # 2 + 5 + 6 ranks: all fit
    for name in ("low", "mid", "pissa", "low"):
        with bank.rows([name]):
            pass
    bank.add("high", single("high"))
    with bank.rows(["high"]):
        assert list(bank.pool.table) == ["low", "high"]  # mid left, then pissa, low was newer
    bank.remove("low")
    assert list(bank.pool.table) == ["high"] and len(bank.pool.free) == 13 - 7


def enter(names):
    return lambda bank, page: bank.rows(names).__enter__()


def other_model():
    config = ModelConfig(61, 16, 3, heads=4, kv_heads=2, ffn_size=40)
    return adapt(build(config, dtype=torch.float64), "lora", targets="q")


@pytest.mark.parametrize(
    "use, words",
    [
        (enter(["hihg"]), "no adapter is called 'hihg': did you mean 'high'"),
        (enter("low"), "give a list"),
        (lambda bank, page: bank.add("low", single("low")), "called 'low' already"),
        (lambda bank, page: bank.add("dora", adapt(fresh(), "dora")), "does more than add"),
        (lambda bank, page: bank.add("e", adapt(fresh(), "lora", targets="embed")), "embedding"),
        (lambda bank, page: bank.add("other", other_model()), "another model"),
        (lambda bank, page: AdapterBank(bank.model, LARGE), "adapted already"),
        (lambda bank, page: AdapterBank(fresh(), page), "holds no adapter"),
        (lambda bank, page: bank_of(["high"], page * 7), "of rank 7 needs"),
        (lambda bank, page: AdapterBank(fresh(), LARGE, targets=("norm",)), "no linear layer"),
        (lambda bank, page: enter(TWO)(bank_of(TWO, page * 9), page), "9 ranks together"),
        (lambda *_: AdapterBank(fresh(), LARGE, ("q",)).add("low", single("low")), "not serve"),
    ],
)
def test_one_sentence_for_what_cannot_be(use, words):
    bank = bank_of(["low", "high"])
    with pytest.raises(InputError, match=words):
        use(bank, bank.pool.page_bytes)
    assert bank.current is None


def test_rows_of_any_ranks_each_have_their_own_pages_and_none_adds_zero():
    a, b = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    a[0], b[0] = 0, 0
    tables, scalings = [[8, 3], [], [5, 1, 2]], [2.0, 9.0, 0.5]
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    for rank in (None, 5):
        added = Rows(tables, scalings, rank, dtype=torch.float64).added(x, a, b)
        for own, table, s, row in zip(x, tables, scalings, added):
            torch.testing.assert_close(row, s * own @ a[table].T @ b[table])
        assert not added[1].any()
    assert not Rows([[], []], [1.0, 1.0]).added(x[:2], a, b).any()


def test_while_rows_are_computed():
    bank = bank_of(["low"])
    with bank.rows(["low", None]):
        want = bank.model(tokens(2))
        with pytest.raises(InputError, match="'low' is in use"):
            bank.remove("low")
        with pytest.raises(InputError, match="one a row"):
            bank.model(tokens(3))
        with pytest.raises(InputError, match="all rows at once"):
            enter(["low"])(bank, None)
        assert torch.equal(bank.model(tokens(2)), want)
    bank.remove("low")
