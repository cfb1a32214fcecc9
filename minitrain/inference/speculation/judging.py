"""The target's verdict over a batch of drafts, whoever made them and however the pass was read.

What was drawn goes through one call of `verify`, filled up to the longest draft; what was picked is
walked. An engine calls this with the logits of its pass, and needs to know no more of speculation.
Shapes: n nodes of a draft  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minitrain.errors import InputError
from minitrain.inference.logits import NO_NUMBERS, are_numbers, draw, penalised
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.chance import Chance
from minitrain.inference.speculation.proposer import ROOT, Draft, shaped
from minitrain.inference.speculation.tree import depths, walk
from minitrain.inference.speculation.verification import verify


class Judged(Protocol):
    """The part of a request that its verdicts depend on, beside draft, logits and chance."""

    prompt: Sequence[int]
    parameters: SamplingParameters

    @property
    def told(self) -> Sequence[int]: ...


class Case(NamedTuple):
    """One request's draft, and logits (n + 1, V): after the text's last token, then each node."""

    request: Judged
    draft: Draft
    logits: Tensor
    chance: Chance


class Verdict(NamedTuple):
    path: list[int]  # the nodes that are kept, in order: what the cache must hold of them
    tokens: list[int]  # theirs, and one more, recovered or bonus


def judge(cases: Sequence[Case]) -> list[Verdict]:
    """One for each; a request's chance moves on by the tokens that it got."""
    drawn = [i for i, case in enumerate(cases) if case.draft.probabilities is not None]
    verdicts = dict(zip(drawn, _judge_drawn([cases[i] for i in drawn]) if drawn else ()))
    picked = {i: _judge_picked(case) for i, case in enumerate(cases) if i not in verdicts}
    return [(verdicts | picked)[i] for i in range(len(cases))]


def _judge_picked(case: Case) -> Verdict:
    draft, own = case.draft, _own_tokens(case)
    path = walk(draft.tokens, draft.parents, own)
    case.chance.advance(len(path) + 1)
    return Verdict(path, [*(draft.tokens[node] for node in path), own[path[-1] + 1 if path else 0]])


def _own_tokens(case: Case) -> list[int]:
    """The target's own token after the text's last and after each node: n + 1 of them."""
    logits, parameters = _penalised(case), case.request.parameters
    if parameters.greedy:
        return logits.argmax(dim=-1).tolist()
    depth = torch.tensor([0, *depths(case.draft.parents)])
    uniforms = case.chance.ahead(int(depth.max()) + 1)[depth]  # rivals share one: one is taken
    return draw(shaped(logits, parameters), uniforms).tolist()


def _judge_drawn(cases: Sequence[Case]) -> list[Verdict]:
    shapes = (shaped(_penalised(case), case.request.parameters) for case in cases)
    p = _filled([logits.softmax(dim=-1) for logits in shapes])  # (B, g + 1, V)
    q = _filled([case.draft.probabilities for case in cases])  # (B, g, V)
    drafts = _filled([torch.tensor(case.draft.tokens) for case in cases])  # (B, g)
    lengths = torch.tensor([len(case.draft.tokens) for case in cases])
    uniforms = [case.chance.coins(len(case.draft.tokens) + 1) for case in cases]
    coins, last = (
        _filled([own[:-1] for own in uniforms]),
        torch.stack([own[-1:] for own in uniforms]),
    )
    tokens, kept = verify(p, q, drafts, torch.cat((coins, last), dim=1), lengths)
    return [
        Verdict(list(range(count)), row[: count + 1])
        for row, count in zip(tokens.tolist(), kept.tolist())
    ]


def _penalised(case: Case) -> Tensor:
    """logits (n + 1, V), float32 on the CPU: penalties count what each node's way has told."""
    logits, parameters = case.logits.float().cpu(), case.request.parameters
    if not are_numbers(logits).all():
        raise InputError(f"the target gave {NO_NUMBERS}")
    if not parameters.penalised:
        return logits
    draft, told = case.draft, [list(case.request.told)]
    for token, parent in zip(draft.tokens, draft.parents):
        told.append([*told[parent - ROOT], token])
    rows = [
        penalised(*each, parameters)
        for each in zip(logits, [case.request.prompt] * len(told), told)
    ]
    return torch.stack(rows)


def _filled(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)
