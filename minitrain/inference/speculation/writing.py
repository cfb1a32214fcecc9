"""Writing with drafts: what was not read yet and the draft are read in one pass, and judged.

    text      Once upon a | time there was          the target has read all but the last token
    pass      a · time there was                    reads it and the draft: 4 rows of logits
    verdict   keeps "time there", replaces "was" by "lived": three tokens in one pass
    caches    cut behind "there": the target's here, a draft model's when it is asked again

One rule for every pass, as in vLLM's scheduler: a request has tokens that were read and tokens that
were not; the prompt is only a longer stretch of the latter. `generate` of inference/sampling.py is
the version without drafts and without cache, inference/cached.py that without drafts.

Cost a round: one pass of the target over 1 + n tokens a request, and the proposer's own.
Paper: Leviathan et al., arXiv 2211.17192. Lab: e09b.
Shapes: B requests  T tokens read  n nodes of a draft  D width  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.forward import check_servable
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.judging import Case, Verdict, judge
from minitrain.inference.speculation.length import FixedLength, Length
from minitrain.inference.speculation.proposer import (
    ROOT,
    Draft,
    Proposer,
    check_drafts,
    check_vocabulary,
)
from minitrain.inference.speculation.request import Request
from minitrain.inference.speculation.tree import after, ancestors, depths
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

GREEDY = SamplingParameters()


@torch.no_grad()
def speculate(
    target: Transformer,
    proposer: Proposer,
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters = GREEDY,
    length: int | Length = 4,
    generators: Sequence[torch.Generator] | None = None,
) -> list[Request]:
    """Writes on from each prompt, all in one batch, with drafts of `length` tokens at most; a
    request's `told` is what was written, up to a stop token (left out) or `max_new_tokens`.

    The texts are the target's own: at temperature 0 token for token, else in distribution. Each
    request draws from its own generator (None: from the parameters' seed), and depends on no other
    in the batch. Stop strings and log probabilities are the engine's business.
    """
    check_servable(target)
    check_vocabulary(proposer, target.config.vocab_size)
    _check(prompts, parameters, generators)
    length = FixedLength(length) if isinstance(length, int) else length
    requests = [
        Request(key, prompt, parameters, generator)
        for key, (prompt, generator) in enumerate(zip(prompts, generators or [None] * len(prompts)))
    ]
    room = max(map(len, prompts)) + parameters.max_new_tokens + length.most + 1
    cache = DenseCache.of(target, len(requests), room)
    while going := [request for request in requests if not request.ended]:
        drafts = propose(proposer, going, length, target.config)
        for request, verdict in zip(going, read_and_judge(target, cache, going, drafts)):
            length.observe(request.key, *request.rounds[-1])
            request.extend(verdict.tokens)
            if request.ended:
                proposer.forget(request.key)
                length.forget(request.key)
    return requests


def propose(
    proposer: Proposer, requests: Sequence[Request], length: Length, config: ModelConfig
) -> list[Draft]:
    """A draft for each, to be read by a target of this shape; none where it has one token to go."""
    most = [min(length.next(request.key), request.left - 1) for request in requests]
    asked = [one.asked(n, config.hidden_size) for one, n in zip(requests, most) if n > 0]
    found = proposer.propose(asked) if asked else []
    check_drafts(found, [one.most for one in asked], config.vocab_size)
    rest = iter(found)
    return [next(rest) if count > 0 else Draft() for count in most]


def read_and_judge(
    target: Transformer, cache: DenseCache, requests: Sequence[Request], drafts: Sequence[Draft]
) -> list[Verdict]:
    """One pass over what each request's row has not read, and its draft. Row `request.key` of the
    cache then holds the text and the kept drafts: all but the newest token."""
    starts = list(cache.lengths)
    unread = [one.tokens[starts[one.key] :] for one in requests]
    hidden = _read(target, cache, requests, unread, drafts)  # (B, T, D)
    counts = [len(draft.tokens) + 1 for draft in drafts]
    firsts = [len(new) - 1 for new in unread]  # the text's last token: its logits begin the draft
    rows = [hidden[one.key, at : at + n] for one, at, n in zip(requests, firsts, counts)]
    logits = target.head(torch.cat(rows)).split(counts)
    verdicts = judge(
        [Case(one, d, rows, one.chance) for one, d, rows in zip(requests, drafts, logits)]
    )
    lengths = list(starts)
    for one, new, draft, verdict in zip(requests, unread, drafts, verdicts):
        places = [*range(len(new)), *(len(new) + node for node in verdict.path)]
        if places[-1] >= len(places):  # the path skips a node
            cache.keep(one.key, starts[one.key], places)
        lengths[one.key] += len(places)
        one.unshown.append(hidden[one.key, places])
        one.rounds.append((max(depths(draft.parents), default=0), len(verdict.path)))
    cache.truncate(lengths)
    return verdicts


def _read(
    target: Transformer,
    cache: DenseCache,
    requests: Sequence[Request],
    unread: Sequence[Sequence[int]],
    drafts: Sequence[Draft],
) -> Tensor:
    """-> hidden (B, T, D) of all rows of the cache, filled up at their ends."""
    rows, parents = [[0]] * len(cache.lengths), [[ROOT]] * len(cache.lengths)  # where none is asked
    for one, new, draft in zip(requests, unread, drafts):
        rows[one.key] = [*new, *draft.tokens]
        parents[one.key] = after(len(new), draft.parents)
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])  # (B, T)
    tokens = tokens.to(target.embed.weight.device)
    if all(draft.is_chain for draft in drafts):
        return read_on(target, tokens, cache)
    parents = [[*row, *[ROOT] * (width - len(row))] for row in parents]
    starts = torch.tensor(cache.lengths)[:, None]
    positions = starts + torch.tensor([depths(row) for row in parents]) - 1  # (B, T)
    seen = torch.stack([ancestors(row) for row in parents])  # (B, T, T)
    return read_on(target, tokens, cache, positions.to(tokens.device), seen.to(tokens.device))


def _check(
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters,
    generators: Sequence[torch.Generator] | None,
) -> None:
    if not prompts or (generators is not None and len(generators) != len(prompts)):
        given = "no" if generators is None else len(generators)
        raise InputError(
            f"{len(prompts)} prompts and {given} generators: give one prompt or more, and as many "
            "generators or none"
        )
    if parameters.stop or parameters.log_probabilities is not None:
        raise InputError(
            "stop strings and log probabilities need a tokenizer and an engine: give stop_tokens "
            "here, or the request to an engine that speculates"
        )
