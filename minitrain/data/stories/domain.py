"""The worlds in which the tiny stories happen (worlds.json): their words, ordered, and habits.

The first words of a list are likelier; jobs, places, objects and adjectives are arranged on a
circle of themes (see `odds.py`). No adjective, creature or mood begins with a vowel: "a" fits all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from minitrain.data.stories.odds import EVEN, Table, around, ranked, table, yes


def words(text: str) -> tuple[str, ...]:
    """Split at commas, or at spaces if there is no comma."""
    return tuple(word.strip() for word in (text.split(",") if "," in text else text.split()))


EVENTS = ("move", "visit", "find", "give", "drop", "take", "sing", "feel")
MAX_OBJECTS = 4  # in one story
LISTS_BY_SLOPE = {  # for lists drawn from by rank alone: how fast the odds fall
    1: words("names traits jobs moods creatures feelings"),
    2: words("sizes weathers times postures moves spots gives drops songs rests"),
}


@dataclass(frozen=True)
class Domain:
    """The words and the habits of one world."""

    name: str
    women: tuple[str, ...]
    men: tuple[str, ...]
    traits: tuple[str, ...]
    jobs: tuple[str, ...]
    places: tuple[str, ...]  # with their prepositions: "in the kitchen"
    objects: tuple[str, ...]
    sizes: tuple[str, ...]
    adjectives: tuple[str, ...]
    weathers: tuple[str, ...]
    times: tuple[str, ...]
    postures: tuple[str, ...]
    moves: tuple[str, ...]
    spots: tuple[str, ...]
    gives: tuple[str, ...]
    drops: tuple[str, ...]
    songs: tuple[str, ...]
    moods: tuple[str, ...]
    creatures: tuple[str, ...]
    feelings: tuple[str, ...]
    rests: tuple[str, ...]
    events: tuple[int, ...]  # frequency of each of EVENTS, when possible
    endings: tuple[int, ...]  # of 256: chance to end before event 0, 1, 2, …; 256 closes it
    loyalty: int  # of 256: chance that the next event has the same actor
    nights: int  # of 256: chance to end with where somebody is, else with who has something
    carrying: int  # of 256: chance that the second character starts with an object
    habit: int  # how strongly jobs, places, objects and adjectives are correlated

    def __post_init__(self) -> None:
        assert len(self.events) == len(EVENTS), f"{self.name}: a weight for each of {EVENTS}"
        assert self.endings[-1] == 256, f"{self.name}: the last ending must be certain"

    @property
    def names(self) -> tuple[str, ...]:
        return self.women + self.men

    @property
    def pronouns(self) -> tuple[str, ...]:
        return ("She",) * len(self.women) + ("He",) * len(self.men)

    @property
    def objective_pronouns(self) -> tuple[str, ...]:
        return ("her",) * len(self.women) + ("him",) * len(self.men)

    @property
    def bare_places(self) -> tuple[str, ...]:
        """Without their prepositions: "the kitchen"."""
        return tuple(place.split(" ", 1)[1] for place in self.places)

    @cached_property
    def odds(self) -> Odds:
        return Odds.of(self)


@dataclass(frozen=True)
class Odds:
    """A domain's tables: one per list, or one per index of the list named after `of`."""

    words: dict[str, Table]
    place_of_job: tuple[Table, ...]
    object_of_job: tuple[Table, ...]
    object_of_place: tuple[Table, ...]
    adjective_of_object: tuple[Table, ...]
    carries: Table
    ends: tuple[Table, ...]
    switches: Table
    night: Table
    event: Table
    which: tuple[Table, ...] = EVEN

    @staticmethod
    def of(d: Domain) -> Odds:
        jobs, places, objects = len(d.jobs), len(d.places), len(d.objects)
        lists = [(name, slope) for slope, names in LISTS_BY_SLOPE.items() for name in names]
        return Odds(
            words={name: ranked(len(getattr(d, name)), slope) for name, slope in lists},
            place_of_job=around(places, jobs, d.habit),
            object_of_job=around(objects, jobs, d.habit),
            object_of_place=around(objects, places, d.habit),
            adjective_of_object=around(len(d.adjectives), objects, d.habit),
            carries=yes(d.carrying),
            ends=tuple(yes(ending) for ending in d.endings),
            switches=yes(256 - d.loyalty),
            night=yes(d.nights),
            event=table(d.events),
        )


def _read_worlds(file: Path) -> tuple[Domain, ...]:
    """One domain per JSON object: strings are word lists, other values are weights."""
    return tuple(
        Domain(name, **{field: _value(value) for field, value in world.items()})
        for name, world in json.loads(file.read_text(encoding="utf-8")).items()
    )


def _value(value: str | list[int] | int) -> tuple[str, ...] | tuple[int, ...] | int:
    if isinstance(value, str):
        return words(value)
    return tuple(value) if isinstance(value, list) else value


WORLDS = _read_worlds(Path(__file__).with_name("worlds.json"))
