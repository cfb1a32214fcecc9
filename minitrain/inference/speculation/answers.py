"""Answers from a step with drafts: draft tokens are accepted as long as the target draws the same.

A request whose draft has n tokens has logits at n + 1 positions. Its token is drawn at the first;
if it equals a draft token, the next is drawn from the logits after that token, and so on:

    drafts    was    a    big            drawn    was    a    little        2 kept, 3 generated
    logits after  there  was   a   big            =      =      ≠

    a tree    … the ┬ cat ┬ sat ─ on     read in one pass: each node sees the text and its
                    │     └ ran          ancestors, and its position is its depth
                    └ dog ─ ran          the target draws "cat", then "ran", then anything: 3 tokens

Each token is drawn from the model's own distribution, by the request's own generator, so the answer
is, token for token, the one without drafts, however bad the drafts. A node is accepted with
probability p(token): of siblings at most one is, and their probabilities add up. A chain is a tree
without siblings. A draft with the probabilities that it was sampled from is verified with those
instead (verification.py): more of it is accepted, in the same distribution, but the text differs.

Papers: Cai et al. (Medusa), arXiv 2401.10774; Miao et al. (SpecInfer), 2305.09781; Fu et al.
(Lookahead), 2402.02057. Shapes: M sampled rows  n drafted tokens  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minitrain.inference.engine.answer import Output, append_token
from minitrain.inference.engine.scheduler import Work
from minitrain.inference.sampling import (
    are_numbers,
    penalised,
    sample,
    shaped,
    with_log_probabilities,
)
from minitrain.inference.speculation.proposer import ROOT
from minitrain.inference.speculation.scheduler import draft_of
from minitrain.inference.speculation.verification import verify

Paths = dict[str, list[int]]  # by request: the accepted nodes of its draft, in order
Rows = Sequence[tuple[Work, int]]  # with each one's first row in the logits


def draw_answers(sampled: Sequence[Work], logits: Tensor, now: float) -> tuple[list[Output], Paths]:
    """`engine.answer.draw_answers` for drafts: logits (M, V) with `samples` rows each."""
    picked, drawn, row = [], [], 0
    for work in sampled:
        (picked if draft_of(work).probabilities is None else drawn).append((work, row))
        row += work.samples
    outputs, paths = _draw_along(picked, logits, now)
    more, others = _judge(drawn, logits, now) if drawn else ([], {})
    return outputs + more, paths | others


def _draw_along(picked: Rows, logits: Tensor, now: float) -> tuple[list[Output], Paths]:
    """Draws all requests' next tokens at once; repeats for those whose token was drafted."""
    outputs: list[Output] = []
    paths: Paths = {work.request.id: [] for work, _ in picked}
    under = {work.request.id: draft_of(work).children() for work, _ in picked}
    going_on = [(work.request, first, ROOT) for work, first in picked]
    while going_on:
        requests = [request for request, _, _ in going_on]
        rows = [first + 1 + node for _, first, node in going_on]
        drawn = sample(logits if len(rows) == len(logits) else logits[rows], requests)
        new = [append_token(request, one, now) for request, one in zip(requests, drawn)]
        outputs += new
        following = []
        for (request, first, node), output in zip(going_on, new):
            if output.finish_reason is None:
                child = under[request.id].get((node, output.drawn.token))
                if child is not None:
                    paths[request.id].append(child)
                    following.append((request, first, child))
        going_on = following
    return outputs, paths


def _judge(drawn: Rows, logits: Tensor, now: float) -> tuple[list[Output], Paths]:
    """Verifies sampled chains by exact rejection sampling."""
    outputs, paths, cases = [], {work.request.id: [] for work, _ in drawn}, []
    for work, row in drawn:
        own = logits[row : row + work.samples]  # (n + 1, V)
        if are_numbers(own).all():
            cases.append((work, own))
        else:
            outputs.append(append_token(work.request, None, now))
    for (work, own), tokens in zip(cases, _verdicts(cases) if cases else ()):
        request, wanted = work.request, work.request.parameters.log_probabilities
        for place, token in enumerate(tokens):
            one = with_log_probabilities(token, own[place], wanted)
            outputs.append(append_token(request, one, now))
            if outputs[-1].finish_reason is not None:
                break
            if place < len(tokens) - 1:  # the last one is the target's, not a draft token
                paths[request.id].append(place)
    return outputs, paths


def _verdicts(cases: Sequence[tuple[Work, Tensor]]) -> list[list[int]]:
    """The new tokens of each, in one call of `verify`, padded to the longest draft."""
    drafts = [draft_of(work) for work, _ in cases]
    p = [_shaped(work, logits).softmax(dim=-1) for work, logits in cases]
    uniforms = [
        torch.rand(len(row), generator=work.request.generator) for (work, _), row in zip(cases, p)
    ]
    coins = _filled([own[:-1] for own in uniforms])  # (B, g)
    last = torch.stack([own[-1:] for own in uniforms])  # (B, 1)
    tokens, kept = verify(
        _filled(p),  # (B, g + 1, V)
        _filled([draft.probabilities for draft in drafts]),  # (B, g, V)
        _filled([torch.tensor(draft.tokens) for draft in drafts]),  # (B, g)
        torch.cat((coins, last), dim=1),
        torch.tensor([len(draft) for draft in drafts]),
    )
    return [row[: count + 1] for row, count in zip(tokens.tolist(), kept.tolist())]


def _shaped(work: Work, logits: Tensor) -> Tensor:
    """logits (n + 1, V), float32 on the CPU: penalties include the earlier draft tokens."""
    request, parameters = work.request, work.request.parameters
    logits = logits.float().cpu()
    if parameters.penalised:
        rows = [
            penalised(
                row, request.prompt, [*request.generated, *draft_of(work).tokens[:n]], parameters
            )
            for n, row in enumerate(logits)
        ]
        logits = torch.stack(rows)
    return shaped(logits, parameters)


def _filled(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)
