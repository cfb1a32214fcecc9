"""The worlds in which the tiny stories happen: their words, in order, and their habits.

The first words of a list are the likelier ones; jobs, places, objects and adjectives go round a
circle of themes (see `odds.py`). No adjective, creature or mood begins with a vowel: "a" fits all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minitrain.data.stories.odds import EVEN, Table, around, ranked, table, yes

EVENTS = ("move", "visit", "find", "give", "drop", "take", "sing", "feel")
MAX_OBJECTS = 4  # in one story


def words(text: str) -> tuple[str, ...]:
    """Split at commas, or at blanks where there is no comma."""
    return tuple(word.strip() for word in (text.split(",") if "," in text else text.split()))


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
    events: tuple[int, ...]  # how often each of EVENTS happens, where it can
    endings: tuple[int, ...]  # of 256: the story ends before event 0, 1, 2, …; 256 closes it
    loyalty: int  # of 256: the next event has the same actor
    nights: int  # of 256: the story ends with where somebody is, else with who has something
    carrying: int  # of 256: the second character starts with an object
    habit: int  # how strongly jobs, places, objects and adjectives belong together

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
    """The tables of a domain; those named `_of_` are one table for each index of the other list."""

    name: Table
    trait: Table
    job: Table
    weather: Table
    time: Table
    posture: Table
    place_of_job: tuple[Table, ...]
    object_of_job: tuple[Table, ...]
    object_of_place: tuple[Table, ...]
    size: Table
    adjective_of_object: tuple[Table, ...]
    carries: Table
    ends: tuple[Table, ...]
    switches: Table
    night: Table
    event: Table
    move: Table
    spot: Table
    give: Table
    drop: Table
    song: Table
    mood: Table
    creature: Table
    feeling: Table
    rest: Table
    which: tuple[Table, ...] = EVEN

    @staticmethod
    def of(d: Domain) -> Odds:
        jobs, places, objects = len(d.jobs), len(d.places), len(d.objects)
        return Odds(
            name=ranked(len(d.names), 1),
            trait=ranked(len(d.traits), 1),
            job=ranked(jobs, 1),
            weather=ranked(len(d.weathers), 2),
            time=ranked(len(d.times), 2),
            posture=ranked(len(d.postures), 2),
            place_of_job=around(places, jobs, d.habit),
            object_of_job=around(objects, jobs, d.habit),
            object_of_place=around(objects, places, d.habit),
            size=ranked(len(d.sizes), 2),
            adjective_of_object=around(len(d.adjectives), objects, d.habit),
            carries=yes(d.carrying),
            ends=tuple(yes(ending) for ending in d.endings),
            switches=yes(256 - d.loyalty),
            night=yes(d.nights),
            event=table(d.events),
            move=ranked(len(d.moves), 2),
            spot=ranked(len(d.spots), 2),
            give=ranked(len(d.gives), 2),
            drop=ranked(len(d.drops), 2),
            song=ranked(len(d.songs), 2),
            mood=ranked(len(d.moods), 1),
            creature=ranked(len(d.creatures), 1),
            feeling=ranked(len(d.feelings), 1),
            rest=ranked(len(d.rests), 2),
        )
