"""Rollouts: answers sampled from the policy as it is now, and their tokens' log-probabilities.

    tokens   end p p p a a end .     p prompt  a answer  end: stops, and is an action  . padding
    mask          0 0 0 1 1 1  0     of the token *predicted*, so one column shorter

`naive_sampler` computes each answer from the beginning for every token. The package's engine reads
a prompt once for its G answers, keeps keys and values, answers many prompts at once, and drops its
cache when the weights change. Rows are padded on the right: causal attention then needs neither a
padding mask nor position ids. Cost: a pass over all weights for each token of the longest answer,
where training needs three for all tokens at once. Paper: vLLM, arXiv 2309.06180.
Lab: e13_alignment. Shapes: B answers  T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from minitrain.alignment.preference import log_probabilities
from minitrain.alignment.verifiable import Task
from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate
from minitrain.model.transformer import Transformer

Sampler = Callable[[Sequence[list[int]], SamplingParameters, int], "list[Answer]"]


@dataclass(frozen=True)
class Answer:
    tokens: list[int]  # without the end token
    ended: bool  # False: cut off at max_new_tokens


@dataclass(frozen=True)
class Rollouts:
    """Prompts and answers as rows, padded on the right; the G answers to a prompt are adjacent."""

    tokens: Tensor  # (B, T) int64
    mask: Tensor  # (B, T - 1): 1 where the token predicted is the answer's, its end included
    answers: list[Answer]

    def __len__(self) -> int:
        return len(self.answers)

    def rows(self, start: int, stop: int) -> Rollouts:
        return Rollouts(self.tokens[start:stop], self.mask[start:stop], self.answers[start:stop])


def naive_sampler(model: Transformer, end_token: int) -> Sampler:
    """One answer at a time, all of it recomputed for each token."""

    def sample(
        prompts: Sequence[list[int]], parameters: SamplingParameters, n: int
    ) -> list[Answer]:
        found = []
        for number, prompt in enumerate(prompts):
            for own in range(n):
                dice = torch.Generator().manual_seed(parameters.seed + number * n + own)
                most, temperature = parameters.max_new_tokens, parameters.temperature
                tokens = generate(
                    model, prompt, most, temperature, end_token=end_token, generator=dice
                )
                found.append(Answer(tokens, len(tokens) < most))
        return found

    return sample


def batched_sampler(model: Transformer, end_token: int) -> Sampler:
    """All answers at once, over a dense cache: a pass of B tokens for each place in the answers.

    For many short answers of a small model: no bookkeeping for single requests. Rows that have
    ended go on to the end of the longest one, and what they draw is thrown away.
    """

    @torch.no_grad()
    def sample(
        prompts: Sequence[list[int]], parameters: SamplingParameters, n: int
    ) -> list[Answer]:
        prompts = repeat_prompts(prompts, n)
        lengths, most = [len(prompt) for prompt in prompts], parameters.max_new_tokens
        cache = DenseCache.of(model, len(prompts), max(lengths) + most)
        rows = [prompt + [end_token] * (max(lengths) - len(prompt)) for prompt in prompts]
        device, dice = model.embed.weight.device, torch.Generator().manual_seed(parameters.seed)
        hidden = read_on(model, torch.tensor(rows, device=device), cache)
        cache.truncate(lengths)
        hidden = hidden[torch.arange(len(rows)), torch.tensor(lengths) - 1]  # (B, D)
        drawn, ended = [], torch.zeros(len(rows), dtype=torch.bool)
        while len(drawn) < most and not ended.all():
            if drawn:
                hidden = read_on(model, drawn[-1][:, None].to(device), cache)[:, 0]
            logits = model.head(hidden).float().cpu()
            if parameters.greedy:
                drawn.append(logits.argmax(dim=-1))
            else:
                p = (logits / parameters.temperature).softmax(dim=-1)
                drawn.append(torch.multinomial(p, 1, generator=dice)[:, 0])
            ended |= drawn[-1] == end_token
        return [_until(end_token, row) for row in torch.stack(drawn, dim=1).tolist()]

    return sample


def _until(end_token: int, row: list[int]) -> Answer:
    ended = end_token in row
    return Answer(row[: row.index(end_token)] if ended else row, ended)


def engine_sampler(model: Transformer, end_token: int, num_blocks: int = 4096) -> Sampler:
    """The same by the package's engine: paged cache, shared prompts, continuous batching."""
    engine = Engine(model, num_blocks, budget=4096, max_running=256)

    def sample(
        prompts: Sequence[list[int]], parameters: SamplingParameters, n: int
    ) -> list[Answer]:
        own = [
            replace(parameters, seed=parameters.seed + number * n, stop_tokens=(end_token,))
            for number in range(len(prompts))
        ]
        found = engine.generate(prompts, own, n)
        return [Answer(one.tokens, one.finish_reason == "stop") for one in found]

    return sample


def repeat_prompts(prompts: Sequence[list[int]], n: int) -> list[list[int]]:
    """Each n times, adjacent: 0 0 0 1 1 1."""
    return [prompt for prompt in prompts for _ in range(n)]


def as_rows(
    prompts: Sequence[list[int]], answers: Sequence[Answer], end_token: int, device: str = "cpu"
) -> Rollouts:
    """One prompt for each answer -> rows. An answer that was cut off has no end token."""
    if len(prompts) != len(answers):
        raise InputError(
            f"{len(prompts)} prompts and {len(answers)} answers: repeat_prompts(prompts, n) gives "
            "one for each"
        )
    rows = [[*p, *a.tokens, *[end_token] * a.ended] for p, a in zip(prompts, answers)]
    length = max(map(len, rows))
    tokens = torch.full((len(rows), length), end_token)
    mask = torch.zeros(len(rows), length - 1)
    for number, (row, prompt) in enumerate(zip(rows, prompts)):
        tokens[number, : len(row)] = torch.tensor(row)
        mask[number, len(prompt) - 1 : len(row) - 1] = 1
    return Rollouts(tokens.to(device), mask.to(device), list(answers))


def answer_log_probabilities(
    model: nn.Module, rollouts: Rollouts, temperature: float = 1.0
) -> Tensor:
    """(B, T - 1), 0 where the mask is 0. Divide by the temperature that was sampled with, else the
    ratio of the first pass is not 1."""
    logp = log_probabilities(model(rollouts.tokens) / temperature, rollouts.tokens)
    return logp * rollouts.mask


def pass_rate(sample: Sampler, task: Task, temperature: float = 0.0, seed: int = 0) -> float:
    """Mean reward of one answer to each of the task's prompts; greedy by default."""
    parameters = SamplingParameters(task.max_new_tokens, temperature, seed=seed)
    answers = sample(task.prompts, parameters, 1)
    return sum(task.reward(i, a.tokens) for i, a in enumerate(answers) if a.ended) / len(answers)
