"""Each published rule, on both sides of its threshold; steps as functions of a row."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
from datasets import Dataset

from minitrain.data.preparation.filters.rules import (
    C4,
    FINEWEB,
    GOPHER,
    REPETITION,
    Edit,
    Filter,
    Rule,
    commonest_length,
    curly_bracket,
    first_failed,
    is_kept,
    line_for_each_few_words,
    lines_break_off,
    lines_without_end,
    lorem_ipsum,
    mostly_bullets,
    no_stop_words,
    one_n_gram_again_and_again,
    repeated_length,
    repeated_lines,
    repeated_n_grams,
    repeated_paragraphs,
    run_steps,
    sentence_lines,
    shares_dropped,
    short_lines,
    text_in_repeated_lines,
    too_few_sentences,
    too_few_words,
    too_many_ellipses,
    too_many_hashes,
    too_many_words,
    unusual_word_length,
    words_without_letters,
)

ALL = (*GOPHER, *REPETITION, *C4, *FINEWEB)
DISTINCT = " ".join(f"word{i}" for i in range(100))


def lines(count: int, marked: int, mark: str, plain: str) -> str:
    return "\n".join(f"{i}{mark if i < marked else plain}" for i in range(count))


BOTH_SIDES = [
    (too_few_words, "a " * 49, "a " * 50),
    (too_many_words, "a " * 100_001, "a " * 100_000),
    (unusual_word_length, "ab abc " * 9, "abc " * 9),
    (unusual_word_length, "abcdefghijk " * 9, "abcdefghij " * 9),
    (too_many_hashes, "# " * 2 + "a " * 9, "# " + "a " * 9),
    (too_many_ellipses, "a... " * 2 + "a " * 9, "a… " + "a " * 9),
    (mostly_bullets, "- a\n" * 10, "- a\n" * 9 + "a"),
    (lines_break_off, lines(10, 4, "...", "."), lines(10, 3, "…", ".")),
    (words_without_letters, "a1 " * 7 + "12 " * 3, "a1 " * 8 + "12 " * 2),
    (no_stop_words, "the the cat", "The cat with a hat"),
    (repeated_lines, lines(6, 0, "", "") + "\n0\n1\n2", lines(7, 0, "", "") + "\n0\n1\n2"),
    (repeated_lines, f"a\nb\nc\nd\n{'x' * 9}\n{'x' * 9}", f"a\nb\nc\nd\n{'x' * 9}\n{'y' * 9}"),
    (repeated_paragraphs, "a\n\na\n\nb", "a\n\nb\n\nc"),
    (one_n_gram_again_and_again, f"{DISTINCT} " + "big cat " * 25, DISTINCT + " big cat" * 4),
    (repeated_n_grams, f"{DISTINCT[:100]} {DISTINCT[:100]}", DISTINCT),
    (curly_bracket, "if (a) { b", "if (a) b"),
    (lorem_ipsum, "x Lorem Ipsum x", "ipsum lorem"),
    (too_few_sentences, "A. B! C? D.", "A. B! C? D. E."),
    (lines_without_end, lines(9, 1, ".", ""), lines(8, 1, ".", "")),
    (short_lines, "a\n" * 7 + ("b" * 31 + "\n") * 3, f"a\n{'b' * 31}"),
    (text_in_repeated_lines, "ab\n" + "c" * 98 + "\nab\nab", "ab\n" + "c" * 198 + "\nab"),
    (line_for_each_few_words, "a b c\n" * 4, "a b c d\n" * 4),
]


@pytest.mark.parametrize(("rule", "fails", "passes"), BOTH_SIDES)
def test_both_sides_of_a_threshold(rule, fails, passes):
    assert rule(fails) and not rule(passes)


def test_every_rule_is_tested_has_a_source_and_judges_any_text():
    assert {rule.fails for rule in ALL} == {rule for rule, _, _ in BOTH_SIDES}
    assert len({rule.name for rule in ALL}) == len(ALL)
    for rule in ALL:
        assert "20" in rule.source and rule.source[-1].isdigit()
        for text in ("", " ", "\n", "#", "…", "\ud800", "日本語。"):
            assert rule.fails(text) in (True, False)
        assert pickle.loads(pickle.dumps(rule)) == rule, "it can be sent to a worker"


PROSE = """The harbour lay quiet when the two brothers came down to the water in the morning.
They had packed bread, a coil of rope and the old map that nobody else believed in.
Their boat was small, and it leaked a little, but it had never failed them in a storm.
"If the wind turns, we go back," said the elder, and he looked at the grey sky for a while.
The younger did not answer; he was counting the gulls, which is what he did to be calm.
Far out, beyond the second buoy, a bell was ringing with the swell."""


def test_prose_passes_all_rules():
    assert first_failed(ALL, PROSE) == ""


def test_signs_by_hand():
    assert commonest_length(["a", "b", "a", "b", "c"], 2) == 6, "'a b' twice, its space counted"
    assert commonest_length(["a", "b", "c"], 2) == 0, "once is no repetition"
    assert repeated_length(["a", "b", "c", "a", "b", "c"], 3) == 3
    assert repeated_length(["a", "a", "a", "a"], 2) == 2, "none counted twice"
    assert repeated_length(["a", "b"], 3) == 0


def test_sentence_lines():
    page = "Home | About\nThis is a sentence.\nToo short.\nIt goes on...\nPlease enable Javascript now.\n'So it does here.'"
    assert sentence_lines(page) == "This is a sentence.\n'So it does here.'"
    assert sentence_lines("") == ""


def test_the_reason_is_the_first_rule_that_fails_and_shares_are_of_each_alone():
    rules = [Rule(partial(too_few_words, least=3), "mine"), Rule(curly_bracket, "C4 2020")]
    texts = ["a b c", "a {", "a b {", "a"]
    reasons = ["", "too_few_words", "curly_bracket", "too_few_words"]
    assert [first_failed(rules, text) for text in texts] == reasons
    assert shares_dropped(rules, texts) == {"too_few_words": 0.5, "curly_bracket": 0.5}
    assert shares_dropped(rules, []) == {"too_few_words": 0.0, "curly_bracket": 0.0}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \n"])
def test_blank_lines_of_any_system_are_no_repetition(end):
    """Blank lines that still held a carriage return or a space counted as lines said before, so
    that every text from Windows with paragraphs was dropped."""
    paragraphs = "\n\n".join(f"sentence number {i} about thing {7 * i}" for i in range(12))
    assert not repeated_lines(paragraphs.replace("\n", end))
    assert not repeated_paragraphs(paragraphs.replace("\n", end))
    twice = "\n\n".join(("the same words", "the same words", "some others"))
    assert repeated_lines(twice.replace("\n", end))
    assert repeated_paragraphs(twice.replace("\n", end))


# --- steps: our loop, `datasets` and Ray Data give the same ---

STEPS = (Filter(GOPHER[:1]), Edit(sentence_lines), Filter(C4))
ROWS = [
    {"id": "short", "text": "too short"},
    {"id": "menu", "text": "Home About Contact\n" * 30},
    {"id": "code", "text": "This line has a { in it, as code does.\n" * 20},
    {"id": "prose", "text": "This is a line of prose.\n" * 20 + "Menu"},
]
REASONS = ["too_few_words", "nothing_left", "curly_bracket", ""]


def test_the_first_reason_stays_and_a_kept_text_is_edited():
    rows = [run_steps(STEPS, row) for row in ROWS]
    assert [row["dropped"] for row in rows] == REASONS
    assert [row["id"] for row in rows if is_kept(row)] == ["prose"]
    assert rows[3]["text"].endswith("prose.") and rows[0]["text"] == "too short"
    assert ROWS[3]["text"].endswith("Menu"), "the row that was given is left alone"


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_map_takes_the_steps_as_they_are(streaming):
    dataset = Dataset.from_list(ROWS)
    if streaming:
        dataset = dataset.to_iterable_dataset()
    for step in STEPS:
        dataset = dataset.map(step)
    assert list(dataset) == [run_steps(STEPS, row) for row in ROWS]
    assert [row["id"] for row in dataset.filter(is_kept)] == ["prose"]


def test_ray_data_takes_the_steps_as_they_are():
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray[data]'")
    dataset = ray.data.from_items(ROWS)
    for step in STEPS:
        dataset = dataset.map(step)
    found = {row["id"]: row["dropped"] for row in dataset.take_all()}
    assert found == dict(zip((row["id"] for row in ROWS), REASONS))
