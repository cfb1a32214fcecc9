"""Exact duplicates: what a reader sees as equal is equal, and nothing else is."""

from __future__ import annotations

from minitrain.data.preparation.deduplication.exact import digest, exact_duplicates, normal_form


def test_firsts_by_hand():
    texts = ["a b", "c", "a  b\n", "A b", "c", "", " \n", "a b"]
    assert exact_duplicates(texts).tolist() == [0, 1, 0, 3, 1, 5, 5, 0]
    assert exact_duplicates(iter([])).tolist() == []


def test_equal_to_the_definition_on_all_pairs_of_drawn_texts():
    texts = [f"{i % 7} x{i % 5}" for i in range(200)]
    firsts = exact_duplicates(texts)
    assert firsts.tolist() == [texts.index(text) for text in texts]


def test_what_is_normal():
    assert normal_form("caf\u0065\u0301\u00a0 x\n") == "caf\u00e9 x"
    assert digest("e\u0301") == digest("\u00e9") != digest("e")
    assert digest("Word") != digest("word"), "case is for near duplicates"
    assert digest("ab c") != digest("a bc")
    assert len(digest("\ud800")) == 16, "a lone surrogate is text, too"


def test_the_digest_is_the_same_on_every_machine():
    assert digest("the same text").hex() == "877d7fbf8dea61a424689d448012d414"
