"""A request goes on in another engine, where the first one left it.

All that an engine knows of a request is its tokens, its parameters, where its generator stands, and
its pages. With these it tells what the first one would have told, and treats it like its own from
then on: a preempted one is computed again, here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from minitrain.inference.disaggregated.inbox import Piece
from minitrain.inference.disaggregated.pages import put
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters


@dataclass
class Handover:
    """A prompt that was read elsewhere, as its pages come; `token` is known with the last ones."""

    number: int
    prompt: tuple[int, ...]
    parameters: SamplingParameters
    pieces: list[tuple[int, Tensor]] = field(default_factory=list)  # (first page, pages)
    token: int = -1
    state: Tensor | None = None

    def take(self, piece: Piece) -> None:
        if piece.pages is not None:
            self.pieces.append((piece.first, piece.pages))
        self.token, self.state = piece.token, piece.state


def adopt(engine: Engine, given: Handover) -> bool:
    """False where there is no room for it yet; InputError where there never will be."""
    computed = len(given.prompt)
    if not engine.scheduler.has_room(computed + 1):
        return False
    id = engine.add(given.prompt, given.parameters, id=str(given.number))
    request = engine.requests[id]
    request.tokens.append(given.token)
    if request.text is not None:
        request.text.push(given.token)
    if given.state is not None:
        request.generator.set_state(given.state)
    known = engine.scheduler.adopt(request, computed)
    blocks, table = engine.scheduler.blocks, request.table
    for first, pages in given.pieces:
        here = max(known // blocks.block_size, table.gone)  # maybe shared, or out of the window
        new = max(0, here - first)
        own = table.blocks[first + new : first + pages.shape[3]]
        if own:
            put(engine.runner.cache, own, pages[:, :, :, new:])
    blocks.commit(table, request.tokens, request.adapter_key, computed)
    return True
