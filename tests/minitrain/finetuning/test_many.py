from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.many import AdapterBank, Rows
from minitrain.finetuning.model import adapt
from minitrain.finetuning.peft_files import save_adapter
from minitrain.measure.clock import compare
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

from ..model.peers import SMALL, random_tokens

METHODS = {
    "low": ("lora", {"rank": 2, "targets": "q,v"}),
    "high": ("rslora", {"rank": 7}),
    "mid": ("lora", {"rank": 5, "alpha": 3.0, "targets": "down"}),
    "pissa": ("pissa", {"rank": 3}),
}
LARGE = 10**7


def fresh():
    return build(SMALL, dtype=torch.float64, seed=1)


def single(name):
    """The model with this adapter alone, by `adapt`."""
    if name is None:
        return fresh()
    method, options = METHODS[name]
    model = adapt(fresh(), method, **options)
    generator = torch.Generator().manual_seed(sorted(METHODS).index(name))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(noise * 0.1)
    return model


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
@pytest.mark.parametrize("length", [1, 9])
def test_of_whole_numbers_each_row_is_its_single_run_in_any_shape(length):
    """Sums of whole numbers are exact in float64, in whatever order: a row alone under `adapt`
    gives the bits that it has in a batch of four adapters and one row without."""
    generator = torch.Generator().manual_seed(0)

    def whole(*shape):
        return torch.randint(-9, 10, shape, generator=generator).double()

    def layers():
        return nn.Sequential(nn.Linear(40, 24), nn.Linear(24, 33)).double()

    base, names = layers(), ["a", None, "b", "c", "d"]
    for parameter in base.parameters():
        parameter.copy_(whole(*parameter.shape))
    bank, alone = AdapterBank(copy.deepcopy(base), LARGE, targets=("0", "1")), {None: base}
    for name, rank in zip("abcd", (1, 2, 4, 8)):
        alone[name] = adapt(copy.deepcopy(base), "lora", rank=rank, targets="0,1")
        for parameter in alone[name].parameters():
            parameter.copy_(whole(*parameter.shape) if parameter.requires_grad else parameter)
        bank.add(name, alone[name])
    x = whole(len(names), length, 40)
    with bank.rows(names):
        mixed = bank.model(x)
    for name, row, found in zip(names, x, mixed):
        assert torch.equal(found, alone[name](row[None])[0]), name
        assert name is None or not torch.equal(found, base(row))


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
    assert [n for n, _ in bank.remove_from_model().named_parameters()] == [
        n for n, _ in fresh().named_parameters()
    ]


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


def test_adapters_from_pefts_files(tmp_path):
    model = single("high")
    save_adapter(model.float(), tmp_path)
    bank, text = AdapterBank(fresh().float(), LARGE), tokens(2)
    bank.load("it", tmp_path)
    with bank.rows(["it", None]), torch.no_grad():
        torch.testing.assert_close(bank.model(text)[0], model(text)[0], rtol=0, atol=1e-5)


@pytest.mark.alone
def test_a_step_takes_at_most_half_the_loop_over_adapters():
    config = ModelConfig(512, 256, layers=2, heads=4, kv_heads=4, ffn_size=688)
    names, text = [f"user {i}" for i in range(8)], torch.randint(512, (8, 1))
    model = build(config)
    bank = AdapterBank(model, 10**8)
    for seed, name in enumerate(names):
        bank.add(name, adapt(build(config), "lora", rank=8, seed=seed))

    @torch.no_grad()
    def at_once():
        with bank.rows(names):
            model(text)

    @torch.no_grad()
    def one_by_one():
        for i, name in enumerate(names):
            with bank.rows([name]):
                model(text[i : i + 1])

    timed = compare({"at once": at_once, "loop": one_by_one}, repeats=7).timings
    assert timed["at once"].median <= 0.5 * timed["loop"].median, timed


def test_one_sentence_for_what_cannot_be():
    bank = bank_of(["low", "high"])
    page = bank.pool.page_bytes
    with pytest.raises(InputError, match="no adapter is called 'hihg': did you mean 'high'"):
        bank.rows(["hihg"]).__enter__()
    with pytest.raises(InputError, match="give a list"):
        bank.rows("low").__enter__()
    with bank.rows(["low"]), pytest.raises(InputError, match="one a row"):
        bank.model(tokens(2))
    with bank.rows(["low"]), pytest.raises(InputError, match="all rows at once"):
        bank.rows(["high"]).__enter__()
    with pytest.raises(InputError, match="called 'low' already"):
        bank.add("low", single("low"))
    with pytest.raises(InputError, match="does more than add"):
        bank.add("dora", adapt(fresh(), "dora"))
    with pytest.raises(InputError, match="embedding"):
        bank.add("embedding", adapt(fresh(), "lora", targets="embed"))
    with pytest.raises(InputError, match="adapted already"):
        AdapterBank(bank.model, LARGE)
    with pytest.raises(InputError, match="holds no adapter"):
        AdapterBank(fresh(), page)
    with pytest.raises(InputError, match="of rank 7 needs"):
        bank_of(["high"], budget=page * 7)
    small = bank_of(["low", "high"], budget=page * 9)
    with pytest.raises(InputError, match="9 ranks together"):
        small.rows(["low", "high"]).__enter__()
    with pytest.raises(InputError, match="does not serve"):
        AdapterBank(fresh(), LARGE, targets=("q",)).add("low", single("low"))
    other = build(ModelConfig(61, 16, 3, heads=4, kv_heads=2, ffn_size=40), dtype=torch.float64)
    with pytest.raises(InputError, match="another model"):
        bank.add("other", adapt(other, "lora", targets="q"))
    with pytest.raises(InputError, match="no linear layer"):
        AdapterBank(fresh(), LARGE, targets=("norm",))
    assert isinstance(bank.model, nn.Module) and bank.current is None


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


def test_an_adapter_in_use_is_not_removed():
    bank = bank_of(["low"])
    with bank.rows(["low", None]):
        want = bank.model(tokens(2))
        with pytest.raises(InputError, match="'low' is in use"):
            bank.remove("low")
        assert torch.equal(bank.model(tokens(2)), want)
    bank.remove("low")
