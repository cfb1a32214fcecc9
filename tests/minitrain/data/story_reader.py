"""The oracle of the corpus: log p of any text, from its words alone.

It shares the words and the odds with the storyteller and nothing else: it parses sentence by
sentence, keeps its own account of who is where and who has what, and adds up the log of the odds
of each choice that it recognises. A text that contradicts itself, or is no story, gets -inf.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

from minitrain.data.stories.chain import ODDS, WORDS, Chain, make_chain
from minitrain.data.stories.domain import EVENTS, MAX_OBJECTS, WORLDS, Domain
from minitrain.data.stories.odds import TOTAL, Table

OPENING = re.compile(r"One (\w+) (\w+), (.+)")
PERSON = re.compile(r"(\w+) the (\w+) (\w+) (\w+) (.+?)(?: with a (\w+) (\w+) (\w+))?")
NIGHT, IN_THE_END = "That night, ", "In the end, "
END = re.compile(r"had (?:nothing|the (\w+))")
READERS = {
    "move": re.compile(r"(\w+) to (the \w+)(?: and met (\w+))?"),
    "visit": re.compile(r"(\w+) to (\w+)"),
    "find": re.compile(r"found a (\w+) (\w+) (\w+) (.+)"),
    "give": re.compile(r"(\w+) the (\w+) to (\w+)"),
    "drop": re.compile(r"(\w+) the (\w+) there"),
    "take": re.compile(r"took the (\w+)"),
    "sing": re.compile(r"(.+ a) (\w+) (\w+) about a (\w+)"),
    "feel": re.compile(r"felt (\w+)"),
}


class Impossible(Exception):
    """The language gives this text no probability."""


@dataclass
class Person:
    name: str
    pronoun: str
    them: str
    job: int
    place: str  # with its preposition


def log_probability(text: str, domain: str = "village") -> float:
    """log p of a whole document of a domain of the corpus."""
    if domain == "chain":
        return chain_score(text, make_chain("chain"))
    return score(text, next(world for world in WORLDS if world.name == domain))


def chain_score(text: str, chain: Chain) -> float:
    words = text.split(" ")
    number = {word: place for place, word in enumerate(chain.words)}
    if len(words) != WORDS or not set(words) <= number.keys():
        return -inf
    numbers = [0, *(number[word] for word in words)]
    steps = list(itertools.pairwise(numbers))
    if any(word not in chain.followers[before] for before, word in steps):
        return -inf
    return -sum(ODDS.nats[chain.followers[before].index(word)] for before, word in steps)


def score(text: str, domain: Domain) -> float:
    """log p of a whole document; -inf where it is none."""
    try:
        return Reading(domain).read(text)
    except Impossible:
        return -inf


def need(condition: object) -> None:
    if not condition:
        raise Impossible


class Reading:
    """The knowledge after the sentences read so far, and their log p."""

    def __init__(self, domain: Domain) -> None:
        self.d, self.odds, self.log_p = domain, domain.odds, 0.0
        self.people: list[Person] = []
        self.owner: dict[str, str] = {}  # object -> name of a person, or a place

    def read(self, text: str) -> float:
        need(text.endswith("."))
        sentences = text[:-1].split(". ")
        need(len(sentences) >= 3)
        first = self.match(OPENING, sentences[0])
        self.chose_word("weathers", first[0])
        self.chose_word("times", first[1])
        need(self.read_person(first[2]))
        carries = self.read_person(sentences[1])
        self.chose(self.odds.carries, (False, True), carries)
        actor, other = self.people[1], self.people[0]
        need(len(sentences) - 3 < len(self.odds.ends))
        for ends, sentence in zip(self.odds.ends, sentences[2:-1]):
            self.chose(ends, (False, True), False)
            actor, other, rest = self.read_subject(sentence, actor, other)
            self.read_event(rest, actor, other)
        self.chose(self.odds.ends[len(sentences) - 3], (False, True), True)
        self.read_close(sentences[-1], actor, other)
        return self.log_p

    def chose(self, odds: Table, options: Sequence, option: object, banned: Sequence = ()) -> None:
        """Multiply p by the odds of `option`, given that none of `banned` could be chosen."""
        need(option in options and option not in banned)
        weight = odds.weights[options.index(option)]
        left = TOTAL - sum(odds.weights[options.index(other)] for other in banned)
        need(weight)
        self.log_p += log(weight) - log(left)

    def chose_word(self, kind: str, word: str, banned: Sequence[str] = ()) -> None:
        self.chose(self.odds.words[kind], getattr(self.d, kind), word, banned)

    def match(self, pattern: re.Pattern, sentence: str) -> tuple:
        found = pattern.fullmatch(sentence)
        need(found)
        return found.groups()

    def read_person(self, sentence: str) -> bool:
        """A character comes in; says whether they carry something."""
        d, odds = self.d, self.odds
        name, trait, job, posture, place, size, adjective, thing = self.match(PERSON, sentence)
        self.chose_word("names", name, [person.name for person in self.people])
        self.chose_word("traits", trait)
        self.chose_word("jobs", job, [d.jobs[person.job] for person in self.people])
        self.chose_word("postures", posture)
        job_index = d.jobs.index(job)
        self.chose(odds.place_of_job[job_index], d.places, place)
        pronoun, them = ("She", "her") if name in d.women else ("He", "him")
        self.people.append(Person(name, pronoun, them, job_index, place))
        if thing:
            self.read_new(odds.object_of_job[job_index], size, adjective, thing, name)
        return thing is not None

    def read_new(self, odds: Table, size: str, adjective: str, thing: str, owner: str) -> None:
        self.chose(odds, self.d.objects, thing, list(self.owner))
        self.chose_word("sizes", size)
        of_object = self.odds.adjective_of_object[self.d.objects.index(thing)]
        self.chose(of_object, self.d.adjectives, adjective)
        self.owner[thing] = owner

    def read_subject(
        self, sentence: str, actor: Person, other: Person
    ) -> tuple[Person, Person, str]:
        """Reads the acting character, the other one, and the rest of the sentence."""
        need(" " in sentence)
        subject, rest = sentence.split(" ", 1)
        self.chose(self.odds.switches, (actor.pronoun, other.name), subject)
        return (other, actor, rest) if subject == other.name else (actor, other, rest)

    def read_event(self, rest: str, actor: Person, other: Person) -> None:
        fitting = [kind for kind in EVENTS if READERS[kind].fullmatch(rest)]
        need(len(fitting) == 1)
        kind = fitting[0]
        self.chose(self.odds.event, EVENTS, kind, self.impossible(actor, other))
        words = READERS[kind].fullmatch(rest).groups()
        getattr(self, f"read_{kind}")(actor, other, *words)

    def impossible(self, actor: Person, other: Person) -> list[str]:
        owners = set(self.owner.values())
        together = actor.place == other.place
        full = len(self.owner) == min(MAX_OBJECTS, len(self.d.objects))
        conditions = {
            "visit": not together,
            "find": not full,
            "give": together and actor.name in owners,
            "drop": actor.name in owners,
            "take": actor.place in owners,
        }
        return [kind for kind, possible in conditions.items() if not possible]

    def read_move(self, actor: Person, other: Person, verb: str, bare: str, met: str) -> None:
        self.chose_word("moves", verb)
        need(bare in self.d.bare_places)
        place = self.d.places[self.d.bare_places.index(bare)]
        self.chose(self.odds.place_of_job[actor.job], self.d.places, place, [actor.place])
        need(met == (other.them if other.place == place else None))
        actor.place = place

    def read_visit(self, actor: Person, other: Person, verb: str, them: str) -> None:
        self.chose_word("moves", verb)
        need(them == other.them)
        actor.place = other.place

    def read_find(
        self, actor: Person, _: Person, size: str, adjective: str, thing: str, spot: str
    ) -> None:
        odds = self.odds.object_of_place[self.d.places.index(actor.place)]
        self.read_new(odds, size, adjective, thing, actor.name)
        self.chose_word("spots", spot)

    def read_give(self, actor: Person, other: Person, verb: str, thing: str, them: str) -> None:
        self.chose_word("gives", verb)
        need(them == other.them)
        self.hand(thing, actor.name, other.name)

    def read_drop(self, actor: Person, _: Person, verb: str, thing: str) -> None:
        self.chose_word("drops", verb)
        self.hand(thing, actor.name, actor.place)

    def read_take(self, actor: Person, _: Person, thing: str) -> None:
        self.hand(thing, actor.place, actor.name)

    def hand(self, thing: str, giver: str, taker: str) -> None:
        things = self.owned(giver)
        need(things)
        self.chose(self.odds.which[len(things) - 1], things, thing)
        self.owner[thing] = taker

    def read_sing(
        self, _: Person, __: Person, made: str, mood: str, song: str, creature: str
    ) -> None:
        self.chose_word("songs", f"{made} {song}")
        self.chose_word("moods", mood)
        self.chose_word("creatures", creature)

    def read_feel(self, _: Person, __: Person, feeling: str) -> None:
        self.chose_word("feelings", feeling)

    def read_close(self, sentence: str, actor: Person, other: Person) -> None:
        is_night = sentence.startswith(NIGHT)
        need(is_night or sentence.startswith(IN_THE_END))
        self.chose(self.odds.night, (False, True), is_night)
        subject = sentence.removeprefix(NIGHT if is_night else IN_THE_END)
        need(not subject.startswith(("She ", "He ")))
        if subject.startswith(("she ", "he ")):
            subject = subject[0].upper() + subject[1:]
        actor, other, rest = self.read_subject(subject, actor, other)
        if is_night:
            need(rest.endswith(" " + actor.place))
            self.chose_word("rests", rest.removesuffix(" " + actor.place))
            return
        (thing,) = self.match(END, rest)
        if thing:
            self.hand(thing, actor.name, actor.name)
        else:
            need(not self.owned(actor.name))

    def owned(self, owner: str) -> list[str]:
        return [thing for thing, its_owner in self.owner.items() if its_owner == owner]
