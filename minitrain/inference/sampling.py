"""Sampling: draw the next token from the model's distribution, append it, repeat.

Temperature divides the logits (0 = always the likeliest); top-k keeps the k likeliest tokens; top-p
the fewest whose probabilities reach p; min-p those of at least min_p times the likeliest's.

    generate          naive: the whole sequence again for each token; n tokens after a prompt of t
                      cost the forward pass of n (t + n/2) tokens
    generate_cached   the prompt once, then each new token alone: t + n tokens. Each still reads all
                      weights: the engine reads them once for many requests
    sample            one token for each of many requests, by its own parameters and generator

For many rows the logits are sorted once, and all cuts use that order:

    ordered   5.1  4.9  2.0  0.3 …          top-k    rank < k
    p         .52  .43  .02  .00 …          top-p    likelier tokens sum to less than p
                                            min-p    p is at least min_p times the first one

top-p uses probabilities after the top-k cut (renormalised), as `transformers` and vLLM do, and
keeps the token that crosses p; the likeliest is always kept. With one shared generator, an answer
would depend on the other requests in its batch; here request and seed alone decide, and a preempted
request continues where it was.

Papers: Fan et al. 2018, top-k (arXiv:1805.04833); Holtzman et al. 2020, top-p (1904.09751); Nguyen
et al. 2024, min-p (2407.01082); Keskar et al. 2019, the repetition penalty (1909.05858).
Shapes: B rows  T tokens so far  V vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.forward import check_own, check_servable
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.transformer import Transformer

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's constants, as int64
MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
NO_NUMBERS = (
    "logits that are no numbers (NaN or infinite): look for NaN in the weights, or compute in "
    "bfloat16 or float32 where float16 overflows"
)


def next_token_probabilities(
    logits: Tensor,  # (V,)
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """The distribution (V,) to draw from, in float32; a token that is cut off has exactly 0."""
    SamplingParameters(1, temperature, top_k, top_p)  # validates them
    logits = logits.float()
    if not are_numbers(logits):
        raise InputError(f"the model gave {NO_NUMBERS}")
    if temperature == 0:
        return torch.zeros_like(logits).index_fill_(0, logits.argmax(), 1.0)
    if top_k is not None and top_k < len(logits):
        kept = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(0, kept.indices, kept.values)
    probabilities = torch.softmax(logits / temperature, dim=-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(0) - ordered  # total of the likelier ones; 0 for the first
        probabilities = probabilities.index_fill(0, order[before >= top_p], 0.0)
    return probabilities / probabilities.sum()


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: list[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
    max_length: int | None = None,
) -> list[int]:
    """The tokens after `prompt` (not empty), up to `end_token` (excluded) or `max_new_tokens`.

    `max_length`: the model's context; longer sequences keep their last `max_length` tokens. The
    same generator gives the same tokens; without one, torch's global generator is used.
    """
    device = next(model.parameters()).device

    def logits_after(tokens: list[int]) -> Tensor:
        window = tokens if max_length is None else tokens[-max_length:]
        logits = model(torch.tensor([window], device=device))  # (1, T, V)
        if not isinstance(logits, Tensor):
            check_own(model)
        return logits[0, -1]

    cuts = temperature, top_k, top_p
    return _generated(logits_after, prompt, max_new_tokens, cuts, end_token, generator)


@torch.no_grad()
def generate_cached(
    model: Transformer,
    prompt: list[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """`generate` with a dense cache: only tokens not yet in it are computed."""
    check_servable(model)
    device = model.embed.weight.device
    cache = DenseCache.of(model, rows=1, room=len(prompt) + max_new_tokens)

    def logits_after(tokens: list[int]) -> Tensor:
        unread = torch.tensor([tokens[cache.lengths[0] :]], device=device)
        return model.head(read_on(model, unread, cache)[0, -1])

    cuts = temperature, top_k, top_p
    return _generated(logits_after, prompt, max_new_tokens, cuts, end_token, generator)


def _generated(
    logits_after: Callable[[list[int]], Tensor],
    prompt: list[int],
    max_new_tokens: int,
    cuts: tuple[float, int | None, float | None],
    end_token: int | None,
    generator: torch.Generator | None,
) -> list[int]:
    if not prompt:
        raise InputError("the prompt is empty and one token is needed: begin with the end token")
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new_tokens:
        probabilities = next_token_probabilities(logits_after(tokens).cpu(), *cuts)
        token = int(torch.multinomial(probabilities, 1, generator=generator))
        if token == end_token:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def are_numbers(logits: Tensor) -> Tensor:
    """logits (..., V) -> (...) bool: True if the largest is finite, and so none is NaN."""
    return logits.amax(dim=-1).isfinite()


def penalised(
    logits: Tensor, prompt: Sequence[int], generated: Sequence[int], parameters: SamplingParameters
) -> Tensor:
    """logits (V,) -> (V,), with used tokens made less likely.

    Repetition divides positive logits and multiplies negative ones, once for any token of prompt or
    answer; presence and frequency are subtracted, and only consider the answer (OpenAI's).
    """
    logits = logits.clone()
    if parameters.repetition_penalty != 1:
        said = torch.tensor(sorted({*prompt, *generated}), device=logits.device)
        penalty, values = parameters.repetition_penalty, logits[said]
        logits[said] = torch.where(values > 0, values / penalty, values * penalty)
    if generated:
        counts = Counter(generated)
        tokens = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), device=logits.device, dtype=logits.dtype)
        logits[tokens] -= parameters.presence_penalty + parameters.frequency_penalty * times
    return logits


def cut(
    logits: Tensor,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """logits (B, V) -> (B, V), -inf for tokens that are cut off."""
    size = logits.shape[-1]
    if top_p is None and min_p is None and (top_k is None or top_k >= size):
        return logits
    if top_k is not None and top_k < size:
        ordered, order = logits.topk(top_k)  # (B, k)
    else:
        ordered, order = logits.sort(descending=True, stable=True)  # (B, V)
    p = ordered.softmax(dim=-1)
    dropped = torch.zeros_like(p, dtype=torch.bool)
    if top_p is not None and top_p < 1:
        dropped |= p.cumsum(dim=-1) - p >= top_p
    if min_p is not None:
        dropped |= p < min_p * p[:, :1]
    dropped[:, 0] = False
    kept = ordered.masked_fill(dropped, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, order, kept)


def shaped(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """logits (B, V) -> logits (B, V) of the distribution to draw from, after temperature, top-k,
    top-p and min-p. Not for greedy parameters, which draw nothing."""
    p, below = parameters, logits - logits.amax(dim=-1, keepdim=True)  # finite for any T
    return cut(below / p.temperature, p.top_k, p.top_p, p.min_p)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """logits (B, V), uniforms (B,) in [0, 1) -> tokens (B,); each row uses its own number only.

    The Gumbel-max trick: the largest of log p - log E, with E exponential, is a token with
    probability p. If logits differ by rounding, as in another batch, the token is the same unless
    two are tied to the last digits. With inverse-CDF sampling every token has a boundary, and all
    of them move: 3 of 30 texts over 32,000 tokens changed in another batch.
    """
    tokens = likeliest(logits - exponentials(uniforms, logits.shape[-1]).log_())
    return torch.tensor(tokens, device=logits.device)


def exponentials(uniforms: Tensor, count: int) -> Tensor:
    """uniforms (B,) -> (B, count) exponential numbers, float32: a hash of the row's number and the
    index, so no generator advances. SplitMix64: Steele et al. 2014, OOPSLA, figure 14."""
    seeds = mixed_(uniforms.double().view(torch.int64).clone())[:, None]
    places = torch.arange(1, count + 1, device=uniforms.device) * GOLDEN
    bits = mixed_(seeds + places).bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
    numbers = bits.float().add_(0.5).mul_(2**-53).clamp_(max=1 - 2**-24)  # in (0, 1)
    return numbers.neg_().log1p_().neg_()


def mixed_(bits: Tensor) -> Tensor:
    """Mixes int64 in place: every output bit depends on every input bit."""
    for shift, factor in ((30, MIX[0]), (27, MIX[1]), (31, 1)):
        bits ^= bits.bitwise_right_shift(shift).bitwise_and_(2 ** (64 - shift) - 1)  # unsigned
        bits *= factor
    return bits


def likeliest(logits: Tensor) -> list[int]:
    """logits (B, V) -> each row's first argmax.

    On a CPU by numpy: torch takes eleven times as long there (24 rows of 32,000: 1.07 ms, 0.09).
    """
    if logits.device.type == "cpu":
        return logits.detach().numpy().argmax(axis=-1).tolist()
    return logits.argmax(dim=-1).tolist()


class Asking(Protocol):
    """The part of a request that the sampler reads."""

    parameters: SamplingParameters
    generator: torch.Generator
    prompt: Sequence[int]

    @property
    def generated(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Drawn:
    """A token; the log probabilities, if requested, are the model's own: before penalties,
    temperature and cuts."""

    token: int
    log_probability: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()  # (token, log probability), the likeliest first


def sample(logits: Tensor, requests: Sequence[Asking]) -> list[Drawn | None]:
    """logits (B, V) -> a token for request b from row b; None if its logits are not finite."""
    tokens, numbers = _tokens(logits.float(), requests)
    return [
        with_log_probabilities(token, logits[row], request.parameters.log_probabilities)
        if numbers[row]
        else None
        for row, (token, request) in enumerate(zip(tokens, requests))
    ]


def _tokens(logits: Tensor, requests: Sequence[Asking]) -> tuple[list[int], list[bool]]:
    """A token for each row, and whether its largest logit is finite (a NaN counts as the largest).
    Rows with the same cuts are cut together."""
    if any(one.parameters.penalised for one in requests):
        pairs = zip(logits, requests)
        logits = torch.stack(
            [penalised(row, o.prompt, o.generated, o.parameters) for row, o in pairs]
        )
    tokens = likeliest(logits)
    numbers = logits[range(len(tokens)), tokens].isfinite().tolist()
    alike = defaultdict(list)
    for row, request in enumerate(requests):
        p = request.parameters
        if not p.greedy:
            alike[p.temperature, p.top_k, p.top_p, p.min_p].append(row)
    for rows in alike.values():
        uniforms = [torch.rand((), generator=requests[row].generator) for row in rows]
        kept = shaped(logits[rows], requests[rows[0]].parameters)
        for row, token in zip(rows, draw(kept, torch.stack(uniforms).to(kept.device)).tolist()):
            tokens[row] = token
    return tokens, numbers


def with_log_probabilities(token: int, logits: Tensor, wanted: int | None) -> Drawn:
    """Adds log probabilities to a token drawn from logits (V,)."""
    if wanted is None:
        return Drawn(token)
    logs = logits.float().log_softmax(dim=-1)  # (V,)
    values, tokens = logs.topk(min(wanted, len(logs)))
    return Drawn(token, float(logs[token]), tuple(zip(tokens.tolist(), values.tolist())))
