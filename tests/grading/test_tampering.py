"""What measures a submission is noticed when it is replaced, whatever it is called."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from minitrain.lab.sandbox import plain_data, tampering
from minitrain.measure.traffic import Op, Trace
from minitrain.ranks.group import Group


def test_nothing_is_changed_where_nothing_was():
    assert tampering.changed(tampering.snapshot()) == []


@pytest.mark.parametrize("owner", tampering.LIBRARIES, ids=lambda owner: owner.__name__)
def test_every_name_that_is_watched_exists(owner):
    for name in tampering.LIBRARIES[owner]:
        assert callable(getattr(owner, name)), name


@pytest.mark.parametrize("module", tampering.OURS, ids=lambda module: module.__name__)
def test_every_function_and_method_of_ours_is_watched(module):
    watched = tampering.snapshot()
    own = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
    assert own, "a module of ours defines something"
    for value in own:
        assert f"{module.__name__}.{value.__name__}" in watched
        if isinstance(value, type):
            methods = vars(value).keys() - {"__slotnames__"}
            assert {f"{value.__name__}.{method}" for method in methods} <= watched.keys()


def test_a_copy_of_one_of_our_objects_changes_nothing():
    before = tampering.snapshot()
    copy.deepcopy(Trace(ops=[Op("send", 8, 8, 2)]))
    assert tampering.changed(before) == []


def private_functions() -> list[str]:
    return [name for name in vars(plain_data) if name.startswith("_enc")]


@pytest.mark.parametrize(
    ("owner", "name", "word"),
    [
        (torch, "allclose", "torch.allclose"),
        (torch.Tensor, "__eq__", "torch.Tensor.__eq__"),
        (json, "dumps", "json.dumps"),
        (Group, "all_reduce", "Group.all_reduce"),
        (Trace, "count", "Trace.count"),
        *((plain_data, name, f"{plain_data.__name__}.{name}") for name in private_functions()),
    ],
    ids=str,
)
def test_what_is_replaced_is_named(monkeypatch, owner, name, word):
    before = tampering.snapshot()
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: True)
    assert word in tampering.changed(before)


def test_other_code_in_the_same_function_is_noticed(monkeypatch):
    before = tampering.snapshot()
    monkeypatch.setattr(Trace.count, "__code__", (lambda self, kind: 0).__code__)
    assert "Trace.count" in tampering.changed(before)
