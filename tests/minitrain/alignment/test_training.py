"""Stories as rewards, answers from the engine, and the loop that learns from them."""

from __future__ import annotations

import copy
import math
import sys
from importlib import util
from pathlib import Path
from random import Random

import pytest
import torch

from minitrain.alignment import AlignConfig, align, final_facts
from minitrain.alignment import trainer as loop
from minitrain.alignment.kl import last_token
from minitrain.alignment.reward_model import Pairs, RewardModel, fit_reward_model, with_scalar_head
from minitrain.alignment.rollouts import (
    Answer,
    answer_log_probabilities,
    as_rows,
    batched_sampler,
    engine_sampler,
    naive_sampler,
    pass_rate,
    repeat_prompts,
)
from minitrain.alignment.verifiable import (
    Task,
    consistent_sentences,
    is_story,
    share_of_sentences,
    whole_stories,
)
from minitrain.data.corpus import make_corpus
from minitrain.data.tokenizer import train_tokenizer
from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.ranks.launch import launch
from minitrain.training.loop import Peers

CONFIG = ModelConfig(32, 16, 1, 2, 2, ffn_size=32)
END = 0


def reader():
    """The corpus's own oracle, which parses stories and shares no code with the verifier."""
    path = Path(__file__).parents[1] / "data/story_reader.py"
    spec = util.spec_from_file_location("story_reader", path)
    module = util.module_from_spec(spec)
    sys.modules["story_reader"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("domain", ["village", "space"])
def test_the_verifier_says_what_the_oracle_says(domain):
    dice, oracle = Random(0), reader()
    stories = make_corpus(9_000, seed=3, domain=domain).documents
    words = " ".join(stories).split(" ")
    texts = list(stories)
    for story in stories:
        own = story.split(" ")
        own[dice.randrange(len(own))] = dice.choice(words)
        sentences = story.split(". ")
        del sentences[dice.randrange(len(sentences))]
        texts += [" ".join(own), ". ".join(sentences), story[:-1], f"{story} {story}"]
    want = [oracle.log_probability(text, domain) > -math.inf for text in texts]
    assert [is_story(text, domain) for text in texts] == want and 0 < sum(want) < len(want)


def test_the_share_of_sentences_before_a_contradiction():
    story = make_corpus(2_000, seed=3).documents[0]
    sentences = story.split(". ")
    assert consistent_sentences(story) == (len(sentences), True)
    assert share_of_sentences(story) == 1.0
    wrong = ". ".join([*sentences[:-1], "In the end, nobody had the moon."])
    assert consistent_sentences(wrong) == (len(sentences) - 1, False)
    assert 0 < share_of_sentences(wrong) < 1.0 and share_of_sentences("") == 0.0
    with pytest.raises(InputError, match="world of stories"):
        is_story(story, "chain")


def test_final_facts_reward_the_truth_alone():
    stories = make_corpus(20_000, seed=4).documents
    tokenizer = train_tokenizer(stories, 400)
    task = final_facts(stories, tokenizer)
    asked = [s for s in stories if "In the end" in s and " had the" in s.split(". ")[-1]]
    assert len(asked) == len(task.prompts) > 3
    for number, (prompt, story) in enumerate(zip(task.prompts, asked)):
        cut, end = story.rsplit(" had the", 1)
        assert prompt == [tokenizer.end_token, *tokenizer.encode(f"{cut} had the")]
        assert task.reward(number, tokenizer.encode(end)) == 1.0
        assert task.reward(number, tokenizer.encode(" moon.")) == 0.0
    whole = whole_stories(tokenizer)
    assert whole.reward(0, tokenizer.encode(stories[0])) == 1.0
    with pytest.raises(InputError, match="who has what"):
        final_facts(["One day."], tokenizer)


def test_rows_count_answers_and_their_ends():
    rows = as_rows([[5, 6], [7]], [Answer([8], True), Answer([9, 9, 9], False)], END)
    assert rows.tokens.tolist() == [[5, 6, 8, 0], [7, 9, 9, 9]]
    assert rows.mask.tolist() == [[0, 1, 1], [1, 1, 1]]
    assert last_token(rows.mask).tolist() == [2, 2]
    with pytest.raises(InputError, match="repeat_prompts"):
        as_rows([[5]], [], END)


def test_all_samplers_draw_what_one_at_a_time_draws():
    """Greedy, where both must agree token by token; and each answer's own seed."""
    model = build(CONFIG, seed=3)
    prompts, settings = [[1, 2, 3], [4, 5]], SamplingParameters(6, temperature=0.0)
    found = naive_sampler(model, END)(prompts, settings, 2)
    for make in (engine_sampler, batched_sampler):
        sample = make(model, END)
        assert sample(prompts, settings, 2) == found
        drawn = sample(prompts, SamplingParameters(6, temperature=1.0, seed=1), 8)
        assert len({tuple(one.tokens) for one in drawn[:8]}) > 2


def test_the_ratio_is_1_on_policy_and_only_at_the_temperature_of_sampling():
    model = build(CONFIG, seed=3)
    hot = SamplingParameters(5, temperature=2.0, log_probabilities=0)
    rows = as_rows(repeat_prompts([[1, 2]], 4), engine_sampler(model, END)([[1, 2]], hot, 4), END)
    same, raw = (answer_log_probabilities(model, rows, t) for t in (2.0, 1.0))
    again = answer_log_probabilities(model, rows, 2.0)
    assert ((same - again).exp() == 1).all() and (same - raw).abs().max() > 0.01


def tens(number: int, answer: list[int]) -> float:
    return sum(token >= 16 for token in answer) / 4


TASK = Task([[1, 2], [3], [4, 5, 6]], tens, max_new_tokens=4)


@pytest.mark.parametrize("method", loop.METHODS)
def test_every_method_learns_an_easy_task(method):
    model = build(CONFIG, seed=1)
    config = AlignConfig(method, prompts=3, group_size=8, lr=2e-2, beta=0.01, passes=2, seed=2)
    records = align(model, TASK, config, 20, END)
    first, last = records[0].reward, sum(r.reward for r in records[-3:]) / 3
    assert last > first + 0.15, (first, last)
    assert records[0].kl == 0 and records[-1].kl > 0
    repeated = align(build(CONFIG, seed=1), TASK, config, 2, END)
    assert [r.reward for r in repeated] == [r.reward for r in records[:2]]


def test_answers_of_a_step_ago_are_off_policy():
    config = AlignConfig("rloo", prompts=2, lr=1e-2, clip=0.01, lag=1)
    records = align(build(CONFIG, seed=1), TASK, config, 3, END)
    assert [r.step for r in records] == [1, 2, 3]
    assert records[0].clipped == 0.0 and records[-1].clipped > 0


def experience(config: AlignConfig, critic):
    model = build(CONFIG, dtype=torch.float64, seed=1)
    reference = build(CONFIG, dtype=torch.float64, seed=2)
    sample = engine_sampler(build(CONFIG, seed=1), END)
    return model, loop.collect(model, reference, critic, TASK, config, END, sample, Random(0))[0]


@pytest.mark.parametrize("method, aggregation", [("grpo", "grpo"), ("rloo", "dapo"), ("ppo", "dapo"), ("dr_grpo", "dr_grpo")])  # fmt: skip
def test_two_ranks_have_the_gradients_of_one_process(method, aggregation):
    config = AlignConfig(method, prompts=2, group_size=4, aggregation=aggregation, loss_beta=0.1)
    base = build(CONFIG, dtype=torch.float64, seed=1)
    torch.manual_seed(5)
    critic = with_scalar_head(base) if method == "ppo" else None
    model, whole = experience(config, critic)

    def gradients(part, peers=loop.ALONE):
        own, judge = copy.deepcopy(model), copy.deepcopy(critic)
        loop.losses(own, judge, part, config, peers)[0].backward()
        both = [*own.named_parameters(), *(judge.named_parameters() if judge else ())]
        return [p.grad for _, p in both]

    def on_rank(group):
        size = len(whole.rollouts) // group.size
        part = whole.rows(size * group.rank, size * (group.rank + 1))
        found = gradients(part, Peers(group.size, group.all_reduce))
        return [group.all_reduce(g) for g in found]

    for ranks in launch(on_rank, ranks=2):
        for got, want in zip(ranks, gradients(whole)):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_a_reward_model_learns_an_order_and_is_normalised():
    torch.manual_seed(0)
    model = RewardModel(build(CONFIG, seed=1))
    tokens = torch.randint(1, 32, (400, 6))
    mask = torch.ones(400, 6)
    mask[::2, 4:] = 0  # padding, which may hold anything
    better = (tokens * mask).sum(1)
    a, b = better[:200] > better[200:], slice(None)
    first, second = (tokens[:200], mask[:200]), (tokens[200:], mask[200:])
    pick = lambda i, own: torch.where(own[:, None], first[i], second[i])[b]  # noqa: E731
    pairs = [pick(0, a), pick(1, a), pick(0, ~a), pick(1, ~a)]
    batches = [Pairs(*(x[i : i + 20] for x in pairs)) for i in range(0, 200, 20)] * 3
    losses = fit_reward_model(model, batches, lr=1e-2)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    model.normalise(tokens, mask)
    scores = model(tokens, mask)
    assert abs(scores.mean()) < 1e-5 and abs(scores.std() - 1) < 1e-4
    other = torch.where(mask.bool(), tokens, 7)
    torch.testing.assert_close(model(other, mask), scores)


def test_a_value_model_expects_nothing_at_first():
    model = build(CONFIG, seed=1)
    critic = with_scalar_head(model, std=0.0)
    assert (critic(torch.ones(2, 3, dtype=torch.long)) == 0).all()
    assert critic.embed.weight is not model.embed.weight


def test_what_cannot_be_is_refused():
    for wrong, words in (
        ({"method": "trpo"}, "method of alignment"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"group_size": 0}, "group_size is 0"),
        ({"temperature": 0.0}, "above 0"),
    ):
        with pytest.raises(InputError, match=words):
            AlignConfig(**wrong)
    greedy = pass_rate(engine_sampler(build(CONFIG), END), TASK)
    assert 0 <= greedy <= 1
