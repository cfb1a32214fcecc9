"""Rewards that are checked, not learned: is a story possible, and is its final fact right?

The storyteller writes each text by exactly one series of choices. So it is its own verifier: for
each sentence in turn, the choices whose words stand in it are tried until the storyteller writes
that sentence; if none does, the text contradicts itself there. No second grammar that could differ.
Cost: some hundred trial sentences, 1 to 5 ms a story.

    … Mia ran to him. She gave the loaf to him. In the end, Tom had the ->  loaf.      1
                                                                            needle.    0
Paper: verifiable rewards, arXiv 2411.15124 (section 6). Lab: e13_alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import islice
from random import Random

from minitrain.data.stories.domain import WORLDS, Domain
from minitrain.data.stories.odds import Table
from minitrain.data.stories.storyteller import Story
from minitrain.data.tokenizer import Tokenizer
from minitrain.errors import InputError, unknown_name

CUE = " had the"
CLOSINGS = ("That night, ", "In the end, ")


class _NoWord(Exception):
    """No choice left whose words stand in the sentence."""


class _Trial:
    """Makes known choices, then the first possible of each further one, and notes the others."""

    def __init__(self, known: Sequence[int], trial: list[list[int]], world: Domain, text: str):
        self.known, self.trial, self.at = known, trial, 0
        self.words, self.lists = set(text.replace(",", "").rstrip(".").split()), _lists(world)

    def pick(self, table: Table, banned: Sequence[int] = ()) -> int:
        place, self.at = self.at - len(self.known), self.at + 1
        if place < 0:
            return self.known[place]
        if place == len(self.trial):
            self.trial.append(self._possible(table, banned))
        return self.trial[place][-1]

    def _possible(self, table: Table, banned: Sequence[int]) -> list[int]:
        """Indices to try, the last one first."""
        options = self.lists.get(id(table))
        found = [
            index
            for index, weight in enumerate(table.weights)
            if weight and index not in banned
            if options is None or self.words.issuperset(options[index])
        ]
        if not found:
            raise _NoWord
        return found


@cache
def _lists(world: Domain) -> dict[int, list[list[str]]]:
    """For each table that chooses words: the words of each choice."""
    odds = world.odds
    named = [(odds.words[kind], getattr(world, kind)) for kind in odds.words]
    named += [(table, world.bare_places) for table in odds.place_of_job]
    named += [(table, world.objects) for table in (*odds.object_of_job, *odds.object_of_place)]
    named += [(table, world.adjectives) for table in odds.adjective_of_object]
    return {id(table): [words.split() for words in choices] for table, choices in named}


def _choices(world: Domain, known: Sequence[int], number: int, sentence: str) -> list[int] | None:
    """The choices that write `sentence` as the story's `number`-th, after the known ones."""
    trial: list[list[int]] = []
    while True:
        choices = _Trial(known, trial, world, sentence)
        try:
            written = next(islice(Story(world, choices.pick).sentences(), number, None), None)
        except _NoWord:
            written = None
        if written == sentence:
            return [options[-1] for options in trial]
        while trial and len(trial[-1]) == 1:
            trial.pop()
        if not trial:
            return None
        trial[-1].pop()


@lru_cache(maxsize=20_000)
def consistent_sentences(story: str, domain: str = "village") -> tuple[int, bool]:
    """How many sentences the storyteller could have written before the first that it could not,
    and whether they are all, the story's end among them."""
    world = find_world(domain)
    sentences = [f"{sentence}." for sentence in story.removesuffix(".").split(". ")]
    known: list[int] = []
    for number, sentence in enumerate(sentences):
        found = _choices(world, known, number, sentence)
        if found is None:
            return number, False
        known += found
    return len(sentences), sentences[-1].startswith(CLOSINGS) and story.endswith(".")


def find_world(domain: str) -> Domain:
    worlds = {world.name: world for world in WORLDS}
    if domain not in worlds:
        raise unknown_name("world of stories", domain, worlds)
    return worlds[domain]


def is_story(text: str, domain: str = "village") -> float:
    """1.0 for a whole story with positive probability, else 0.0."""
    return float(consistent_sentences(text, domain)[1])


def share_of_sentences(text: str, domain: str = "village") -> float:
    """A denser reward: the share of sentences before the first contradiction; 1.0 for a story."""
    count, whole = consistent_sentences(text, domain)
    total = max(1, len(text.removesuffix(".").split(". ")))
    return 1.0 if whole else min(count / total, 1 - 1 / (total + 1))


@dataclass(frozen=True)
class Task:
    """Prompts, as tokens, and a reward for each of them: answer's tokens -> 0.0 to 1.0."""

    prompts: list[list[int]]
    reward: Callable[[int, list[int]], float]  # (number of the prompt, answer)
    max_new_tokens: int

    def sample(self, count: int, dice: Random) -> list[int]:
        """Numbers of `count` prompts, different ones."""
        return dice.sample(range(len(self.prompts)), count)


def final_facts(stories: Sequence[str], tokenizer: Tokenizer, domain: str = "village") -> Task:
    """Stories cut after "In the end, Tom had the": the answer is an object that Tom has."""
    cut = [story[: story.rindex(CUE) + len(CUE)] for story in stories if _asks(story)]
    if not cut:
        raise InputError("no story ends with who has what: give some that say 'In the end, …'")
    reward = partial(_continued, cut, tokenizer, domain)
    return Task([_prompt(text, tokenizer) for text in cut], reward, max_new_tokens=7)


def whole_stories(
    tokenizer: Tokenizer,
    domain: str = "village",
    measure: Callable[[str, str], float] = is_story,
    max_new_tokens: int = 160,
) -> Task:
    """One prompt, the end token: a story is to be told from nothing."""

    def reward(number: int, answer: list[int]) -> float:
        return measure(tokenizer.decode(answer), domain)

    return Task([[tokenizer.end_token]], reward, max_new_tokens)


def _asks(story: str) -> bool:
    last = story.rpartition(". ")[2]
    return last.startswith("In the end, ") and CUE in last


def _prompt(text: str, tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.end_token, *tokenizer.encode(text)]


def _continued(
    cut: list[str], tokenizer: Tokenizer, domain: str, number: int, answer: list[int]
) -> float:
    return is_story(cut[number] + tokenizer.decode(answer), domain)
