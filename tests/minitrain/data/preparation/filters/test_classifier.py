"""The classifier: kinds of text told apart on texts it has not seen; no number for nothing."""

from __future__ import annotations

import pickle

import pytest
import torch

from minitrain.data.corpus import make_corpus
from minitrain.data.preparation.filters.classifier import Classifier, train_classifier
from minitrain.data.preparation.filters.language import SHORT_WORDS, language_of, language_rule
from minitrain.errors import InputError


@pytest.fixture(scope="module")
def heaps():
    return {
        name: make_corpus(60_000, seed=1, domain=name).documents for name in ("village", "space")
    }


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
