"""Writes one story, choice by choice, and adds up -log p of each choice as it is made.

    One rainy day, Mia the kind baker sat in the kitchen with a small warm loaf.
    Tom the old smith worked at the forge.            who is where, with what; then 1 to 4 events:
    Mia ran to him. She gave the loaf to him. …
    In the end, Tom had the loaf.                     and a fact that holds

Each choice shows in the text (the last actor is "She" or "He", another is named), and consequences
of the state (who is there to be met, who has the loaf) are written without any choice: so a text
has exactly one derivation, and its -log p is the sum over the choices.

`contradicted` makes a twin of a story, which has probability 0, for minimal pairs as in BLiMP
(Warstadt et al. 2020, arXiv:1912.00582): does a model track who acts? Chance is 1/2.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.data.stories.domain import EVENTS, MAX_OBJECTS, Domain
from minitrain.data.stories.odds import Pick, Table

VISIT, FIND, GIVE, DROP, TAKE = map(EVENTS.index, ("visit", "find", "give", "drop", "take"))
OTHER = {"She": "He", "He": "She"}
ON_THE_GROUND = 2  # keepers: 0 and 1 are the characters, 2 + place is the ground there


def tell(domain: Domain, pick: Pick) -> str:
    """Writes one story."""
    return " ".join(Story(domain, pick).sentences())


def contradicted(story: str) -> str | None:
    """The story with its last sentence-initial pronoun exchanged; None if there is none.

    Only the last actor may be a pronoun there, so the twin has probability 0.
    """
    sentences = story.split(". ")
    for place in reversed(range(len(sentences))):
        subject, blank, rest = sentences[place].partition(" ")
        if subject in OTHER:
            sentences[place] = OTHER[subject] + blank + rest
            return ". ".join(sentences)
    return None


class Story:
    """The state: two characters, where each is, and who or what place holds each object."""

    def __init__(self, domain: Domain, pick: Pick) -> None:
        self.d, self.odds, self.pick = domain, domain.odds, pick
        self.people: list[int] = []
        self.jobs: list[int] = []
        self.where: list[int] = []
        self.keeper: dict[int, int] = {}  # in order of appearance

    def sentences(self) -> Iterator[str]:
        d, odds, pick = self.d, self.odds, self.pick
        yield f"One {self._word('weathers')} {self._word('times')}, {self._enter(carrying=True)}"
        yield self._enter(carrying=bool(pick(odds.carries, ())))
        actor = 1  # the last actor in the text
        for ends in odds.ends:
            over = pick(ends, ())
            night = over and pick(odds.night, ())
            switches = pick(odds.switches, ())
            actor = 1 - actor if switches else actor
            person = self.people[actor]
            subject = d.names[person] if switches else d.pronouns[person]
            if over:
                subject = subject if switches else subject.lower()
                yield self._night(actor, subject) if night else self._end(actor, subject)
                return
            yield f"{subject} {self._event(actor)}."

    def _enter(self, carrying: bool) -> str:
        """Introduces a character: "Mia the kind baker sat in the kitchen with a warm loaf." """
        d, odds, pick = self.d, self.odds, self.pick
        person = pick(odds.words["names"], self.people)
        trait, job = self._word("traits"), pick(odds.words["jobs"], self.jobs)
        posture = self._word("postures")
        place = pick(odds.place_of_job[job], ())
        self.people.append(person)
        self.jobs.append(job)
        self.where.append(place)
        text = f"{d.names[person]} the {trait} {d.jobs[job]} {posture} {d.places[place]}"
        if not carrying:
            return text + "."
        return f"{text} with {self._new(odds.object_of_job[job], len(self.people) - 1)}."

    def _new(self, odds: Table, keeper: int) -> str:
        """Introduces an object: "a small warm loaf"."""
        thing = self.pick(odds, self.keeper)
        self.keeper[thing] = keeper
        size = self._word("sizes")
        adjective = self.d.adjectives[self.pick(self.odds.adjective_of_object[thing], ())]
        return f"a {size} {adjective} {self.d.objects[thing]}"

    def _word(self, kind: str) -> str:
        """A word of the list `kind`, independent of everything before it."""
        return getattr(self.d, kind)[self.pick(self.odds.words[kind], ())]

    def _event(self, actor: int) -> str:
        kind = EVENTS[self.pick(self.odds.event, self._impossible(actor))]
        return getattr(self, f"_{kind}")(actor)

    def _impossible(self, actor: int) -> list[int]:
        """The events that the state forbids."""
        held, here = self._kept(actor), self.where[actor]
        together = self.where[1 - actor] == here
        possible = {
            VISIT: not together,
            FIND: len(self.keeper) < min(MAX_OBJECTS, len(self.d.objects)),
            GIVE: held and together,
            DROP: held,
            TAKE: self._kept(ON_THE_GROUND + here),
        }
        return [event for event, can_be in possible.items() if not can_be]

    def _move(self, actor: int) -> str:
        verb = self._word("moves")
        odds = self.odds.place_of_job[self.jobs[actor]]
        place = self.where[actor] = self.pick(odds, (self.where[actor],))
        meets = f" and met {self._them(1 - actor)}" if self.where[1 - actor] == place else ""
        return f"{verb} to {self.d.bare_places[place]}{meets}"

    def _visit(self, actor: int) -> str:
        self.where[actor] = self.where[1 - actor]
        return f"{self._word('moves')} to {self._them(1 - actor)}"

    def _find(self, actor: int) -> str:
        thing = self._new(self.odds.object_of_place[self.where[actor]], actor)
        return f"found {thing} {self._word('spots')}"

    def _give(self, actor: int) -> str:
        verb = self._word("gives")
        return f"{verb} {self._one_of(actor, to=1 - actor)} to {self._them(1 - actor)}"

    def _drop(self, actor: int) -> str:
        verb = self._word("drops")
        return f"{verb} {self._one_of(actor, to=ON_THE_GROUND + self.where[actor])} there"

    def _take(self, actor: int) -> str:
        return f"took {self._one_of(ON_THE_GROUND + self.where[actor], to=actor)}"

    def _sing(self, actor: int) -> str:
        made, song = self._word("songs").rsplit(" ", 1)
        return f"{made} {self._word('moods')} {song} about a {self._word('creatures')}"

    def _feel(self, actor: int) -> str:
        return f"felt {self._word('feelings')}"

    def _night(self, actor: int, subject: str) -> str:
        """The closing fact: where one character is."""
        return f"That night, {subject} {self._word('rests')} {self.d.places[self.where[actor]]}."

    def _end(self, actor: int, subject: str) -> str:
        """The closing fact: an object that a character has."""
        has = self._one_of(actor, to=actor) if self._kept(actor) else "nothing"
        return f"In the end, {subject} had {has}."

    def _one_of(self, keeper: int, to: int) -> str:
        """Moves one of the keeper's objects to `to`: "the loaf"."""
        things = self._kept(keeper)
        thing = things[self.pick(self.odds.which[len(things) - 1], ())]
        self.keeper[thing] = to
        return f"the {self.d.objects[thing]}"

    def _kept(self, keeper: int) -> list[int]:
        return [thing for thing, its_keeper in self.keeper.items() if its_keeper == keeper]

    def _them(self, actor: int) -> str:
        return self.d.objective_pronouns[self.people[actor]]
