"""The language of a few sentences, in each language of the table; and of none."""

from __future__ import annotations

import pytest

from minitrain.data.preparation.filters.language import SHORT_WORDS, language_of, language_rule
from minitrain.errors import InputError

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
