"""Twins of stories: they contradict themselves, in one word."""

from __future__ import annotations

from math import inf

import pytest

from minitrain.data.corpus import log_probability, make_corpus
from minitrain.data.stories.contradictions import contradicted
from minitrain.data.stories.worlds import WORLDS


@pytest.mark.parametrize("world", [world.name for world in WORLDS])
def test_no_twin_can_be_told_and_one_word_differs(world: str):
    stories = make_corpus(40_000, seed=5, domain=world).documents
    twins = [(story, twin) for story in stories if (twin := contradicted(story))]
    assert len(twins) > 0.7 * len(stories)
    for story, twin in twins:
        assert log_probability(twin, world) == -inf < log_probability(story, world)
        words = [
            pair for pair in zip(story.split(), twin.split(), strict=True) if len(set(pair)) > 1
        ]
        assert words in ([("He", "She")], [("She", "He")])


def test_the_last_pronoun_is_exchanged():
    assert contradicted("Leo sat. He sang. Mia sat. She left. Leo slept.") == (
        "Leo sat. He sang. Mia sat. He left. Leo slept."
    )
    assert contradicted("Leo sat. Mia sang. She") is not None
    assert contradicted("Leo sat. That night, he slept.") is None
