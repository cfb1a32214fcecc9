"""Messages of each rank in each call, as the relay recorded them, tamper-proof (sandbox/relay.py).

A probe shares its process with the submission, which may edit the rank's trace and the probe's
results. So a probe only sets marks, and its lab's checks read the notes between them:

    probe    group.trace.mark("call"); y = f(x); group.trace.mark(("over", "call"))
    check    for call in relayed.runs(submission.notes[rank], "call", count): operations(call)

Marks are sent to the relay as they are set, with their labels: none can be removed or renamed, and
an extra one shows as an extra run, or as one that ends twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from minitrain.lab.failures import CheckFailed
from minitrain.lab.sandbox.relay import Note
from minitrain.measure.traffic import Label


def runs(
    notes: Sequence[Note], begin: Label, count: int, beside: Collection[Label] = ()
) -> list[list[Note]]:
    """Notes from each mark `begin` to ("over", begin); CheckFailed unless these alternate, `count`
    times: a run that ended early would hide later messages.

    beside: all other runs of the probe. After the first of any, nothing may be sent outside them.
    """
    end = over(begin)
    places = [place for place, note in enumerate(notes) if note.label in (begin, end)]
    if [notes[place].label for place in places] != [begin, end] * count:
        raise CheckFailed(
            f"the trace has {len(places)} marks that say where {begin!r} begins and is over, and "
            f"the probe set {2 * count}: the marks are the grader's, set none in your code"
        )
    _nothing_outside(notes, {begin, *beside})
    return [list(notes[i + 1 : j]) for i, j in zip(places[::2], places[1::2])]


def over(begin: Label) -> Label:
    """The mark that ends a run."""
    return ("over", begin) if isinstance(begin, str) else ("over", *begin)


def _nothing_outside(notes: Sequence[Note], begins: Collection[Label]) -> None:
    under_way, has_begun = None, False
    for note in notes:
        if under_way is None and note.label in begins:
            under_way, has_begun = note.label, True
        elif under_way is not None and note.label == over(under_way):
            under_way = None
        elif under_way is None and has_begun and note.kind not in ("wait", "mark"):
            raise CheckFailed(
                f"it sent something ({note.kind} of {note.payload_bytes} bytes) when no call of it "
                "was under way: send what a call needs before it returns"
            )


def operations(run: Sequence[Note]) -> list[Note]:
    """The run's operations, in the order issued."""
    return [note for note in run if note.kind not in ("wait", "mark")]


def waits(run: Sequence[Note]) -> list[bool]:
    """For each operation of the run, whether the rank had begun to wait for it."""
    waited = {note.number for note in run if note.kind == "wait"}
    return [op.number in waited for op in operations(run)]


def labels(run: Sequence[Note]) -> list[Label]:
    """The labels of the marks inside the run."""
    return [note.label for note in run if note.label is not None]


def before_marks(run: Sequence[Note]) -> Iterator[tuple[Label, Sequence[Note]]]:
    """(a mark's label, the run up to it), for each mark inside the run."""
    for place, note in enumerate(run):
        if note.label is not None:
            yield note.label, run[:place]
