"""Each published rule, on both sides of its threshold; steps as functions of a row."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
import torch
from datasets import Dataset

from minitrain.data.corpus import make_corpus
from minitrain.data.preparation.filters import rules
from minitrain.data.preparation.filters.classifier import Classifier, train_classifier
from minitrain.data.preparation.filters.language import SHORT_WORDS, language_of, language_rule
from minitrain.data.preparation.filters.rules import GOPHER, first_failed, is_kept, run_steps
from minitrain.errors import InputError

ALL = (*GOPHER, *rules.REPETITION, *rules.C4, *rules.FINEWEB)
LONG = "x" * 9
DISTINCT = " ".join(f"word{i}" for i in range(100))


def lines(count: int, marked: int, mark: str, plain: str) -> str:
    return "\n".join(f"{i}{mark if i < marked else plain}" for i in range(count))


BOTH_SIDES = [
    (rules.too_few_words, "a " * 49, "a " * 50),
    (rules.too_many_words, "a " * 100_001, "a " * 100_000),
    (rules.unusual_word_length, "ab abc " * 9, "abc " * 9),
    (rules.unusual_word_length, "abcdefghijk " * 9, "abcdefghij " * 9),
    (rules.too_many_hashes, "# " * 2 + "a " * 9, "# " + "a " * 9),
    (rules.too_many_ellipses, "a... " * 2 + "a " * 9, "a… " + "a " * 9),
    (rules.mostly_bullets, "- a\n" * 10, "- a\n" * 9 + "a"),
    (rules.lines_break_off, lines(10, 4, "...", "."), lines(10, 3, "…", ".")),
    (rules.words_without_letters, "a1 " * 7 + "12 " * 3, "a1 " * 8 + "12 " * 2),
    (rules.no_stop_words, "the the cat", "The cat with a hat"),
    (rules.repeated_lines, lines(6, 0, "", "") + "\n0\n1\n2", lines(7, 0, "", "") + "\n0\n1\n2"),
    (rules.repeated_lines, f"a\nb\nc\nd\n{LONG}\n{LONG}", f"a\nb\nc\nd\n{LONG}\n{'y' * 9}"),
    (rules.repeated_paragraphs, "a\n\na\n\nb", "a\n\nb\n\nc"),
    (rules.one_n_gram_again_and_again, f"{DISTINCT} " + "big cat " * 25, DISTINCT + " big cat" * 4),
    (rules.repeated_n_grams, f"{DISTINCT[:100]} {DISTINCT[:100]}", DISTINCT),
    (rules.curly_bracket, "if (a) { b", "if (a) b"),
    (rules.lorem_ipsum, "x Lorem Ipsum x", "ipsum lorem"),
    (rules.too_few_sentences, "A. B! C? D.", "A. B! C? D. E."),
    (rules.lines_without_end, lines(9, 1, ".", ""), lines(8, 1, ".", "")),
    (rules.short_lines, "a\n" * 7 + ("b" * 31 + "\n") * 3, f"a\n{'b' * 31}"),
    (rules.text_in_repeated_lines, "ab\n" + "c" * 98 + "\nab\nab", "ab\n" + "c" * 198 + "\nab"),
    (rules.line_for_each_few_words, "a b c\n" * 4, "a b c d\n" * 4),
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


def test_sentence_lines():
    page = "Home | About\nThis is a sentence.\nToo short.\nIt goes on...\nPlease enable Javascript now.\n'So it does here.'"
    assert rules.sentence_lines(page) == "This is a sentence.\n'So it does here.'"
    assert rules.sentence_lines("") == ""


def test_the_reason_is_the_first_rule_that_fails_and_shares_are_of_each_alone():
    chosen = [
        rules.Rule(partial(rules.too_few_words, least=3), "mine"),
        rules.Rule(rules.curly_bracket, "C4 2020"),
    ]
    texts = ["a b c", "a {", "a b {", "a"]
    reasons = ["", "too_few_words", "curly_bracket", "too_few_words"]
    assert [first_failed(chosen, text) for text in texts] == reasons
    assert rules.shares_dropped(chosen, texts) == {"too_few_words": 0.5, "curly_bracket": 0.5}
    assert rules.shares_dropped(chosen, []) == {"too_few_words": 0.0, "curly_bracket": 0.0}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \n"])
def test_blank_lines_of_any_system_are_no_repetition(end):
    """Blank lines that still held a carriage return or a space counted as lines said before, so
    that every text from Windows with paragraphs was dropped."""
    paragraphs = "\n\n".join(f"sentence number {i} about thing {7 * i}" for i in range(12))
    assert not rules.repeated_lines(paragraphs.replace("\n", end))
    assert not rules.repeated_paragraphs(paragraphs.replace("\n", end))
    twice = "\n\n".join(("the same words", "the same words", "some others"))
    assert rules.repeated_lines(twice.replace("\n", end))
    assert rules.repeated_paragraphs(twice.replace("\n", end))


# --- steps: our loop, `datasets` and Ray Data give the same ---

STEPS = (rules.Filter(GOPHER[:1]), rules.Edit(rules.sentence_lines), rules.Filter(rules.C4))
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


# The classifier: kinds of text told apart on texts it has not seen; no number for nothing


@pytest.fixture(scope="module")
def heaps():
    names = ("village", "space")
    return {name: make_corpus(60_000, seed=1, domain=name).documents for name in names}


@pytest.fixture(scope="module")
def classifier(heaps) -> Classifier:
    texts = heaps["village"][:80] + heaps["space"][:80]
    return train_classifier(texts, ["village"] * 80 + ["space"] * 80, buckets=4096, epochs=4)


def test_texts_that_it_has_not_seen(classifier, heaps):
    assert classifier.labels == ("space", "village")
    for column, name in enumerate(classifier.labels):
        likely = classifier.probabilities(heaps[name][100:])
        torch.testing.assert_close(likely.sum(1), torch.ones(len(likely)))
        assert (likely[:, column] > 0.5).float().mean() > 0.98


def test_labels_by_chance_are_not_learnt(heaps):
    """What tells a classifier from one that looks at its answers."""
    texts = heaps["village"][:200]
    drawn = torch.randint(2, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    by_chance = train_classifier(texts[:120], [f"{i}" for i in drawn[:120]], 4096, epochs=4)
    right = by_chance.probabilities(texts[120:]).argmax(1) == torch.tensor(drawn[120:])
    assert 0.3 < right.float().mean() < 0.7


def test_the_smaller_heap_counts_as_much(heaps):
    texts = heaps["village"][:150] + heaps["space"][:10]
    unequal = train_classifier(texts, ["a"] * 150 + ["b"] * 10, 4096, epochs=6)
    assert (unequal.probabilities(heaps["space"][50:])[:, 1] > 0.5).float().mean() > 0.95


def test_a_text_without_words_is_judged_by_the_biases_alone(classifier):
    alone = classifier.probabilities([""])
    torch.testing.assert_close(alone[0], classifier.biases.softmax(0))
    assert torch.equal(classifier.probabilities(["?!"]), alone)
    mixed = classifier.probabilities(["the baker", "", "the rocket"])
    torch.testing.assert_close(mixed[1], alone[0])


def test_the_same_texts_give_the_same_classifier_and_a_file_gives_it_back(tmp_path, heaps):
    texts, labels = heaps["village"][:9] + heaps["space"][:9], ["a"] * 9 + ["b"] * 9
    one, other = (train_classifier(texts, labels, 64, epochs=2) for _ in range(2))
    assert torch.equal(one.weights, other.weights)
    back = Classifier.load(one.save(tmp_path / "c.safetensors"))
    assert back.labels == one.labels and torch.equal(back.weights, one.weights)
    rule = pickle.loads(pickle.dumps(back.rule("a", 0.5)))
    assert rule.fails(texts[0]) == (one.probabilities(texts[:1])[0, 0] < 0.5)
    assert rule.name == "unlike_the_wanted"


def test_wrong_arguments_are_told(tmp_path, classifier):
    with pytest.raises(InputError, match="two kinds"):
        train_classifier(["a", "b"], ["x", "x"])
    with pytest.raises(InputError, match="a label for"):
        train_classifier(["a", "b"], ["x"])
    with pytest.raises(InputError, match="did you mean 'village'"):
        classifier.rule("vilage")
    (tmp_path / "c").write_text("none")
    with pytest.raises(InputError, match=r"save one with \.save"):
        Classifier.load(tmp_path / "c")


# --- languages ---


SENTENCES = {
    "en": "The wind blew from the north and it was cold, but they went on with their work.",
    "de": "Der Wind kam aus dem Norden und es war kalt, aber sie gingen nicht nach Hause.",
    "fr": "Le vent venait du nord et il faisait froid, mais ils ne sont pas rentrés dans la maison.",
    "es": "El viento venía del norte y hacía frío, pero no se fueron a la casa con los niños.",
    "it": "Il vento veniva dal nord e faceva freddo, ma non sono andati a casa con i bambini.",
    "pt": "O vento vinha do norte e fazia frio, mas não foram para a casa com os meninos.",
    "nl": "De wind kwam uit het noorden en het was koud, maar zij gingen niet naar huis.",
    "sv": "Vinden kom från norr och det var kallt, men de gick inte hem för att sova.",
    "pl": "Wiatr wiał z północy i było zimno, ale nie poszli do domu, bo to był jego czas.",
}


@pytest.mark.parametrize("language", SHORT_WORDS)
def test_each_language_is_told_from_the_others(language):
    found, share = language_of(SENTENCES[language])
    assert found == language and 0.1 <= share <= 1
    assert not language_rule(language).fails(SENTENCES[language])
    other = "en" if language != "en" else "de"
    assert language_rule(other).fails(SENTENCES[language])


@pytest.mark.parametrize("text", ["", "12 34", "Home About Contact Login", "日本語の文章です。"])
def test_what_is_no_prose_is_no_language(text):
    assert language_of(text)[0] == ""
    assert language_rule("en").fails(text)


def test_a_language_that_the_table_lacks_is_told():
    with pytest.raises(InputError, match="known are de, en"):
        language_rule("english")
