from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.draft_model import DraftModel, first_layers, quantized_draft
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.length import measure_acceptance
from minitrain.inference.speculation.lessons import Course, Lessons, frequent, own_text, train
from minitrain.inference.speculation.medusa import Medusa, MedusaHeads, best_tree
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.proposer import Asked
from minitrain.inference.speculation.serving import speculate
from minitrain.model.transformer import build
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.packed_kernels import Int8PackedLinear

from ...model.peers import SMALL
from ...quantization import toys

GREEDY = SamplingParameters(max_new_tokens=24)


def asked(tokens, most, key=0, parameters=GREEDY, hidden=None):
    return Asked(key, tokens, most, parameters, torch.empty(0, 32) if hidden is None else hidden)


# n-grams


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ([1, 2, 3, 4, 9, 2, 3], [4, 9, 2]),  # "2 3" was followed by 4, 9, 2
        ([7, 1, 2, 5, 8, 1, 2, 6, 1, 2], [6, 1, 2]),  # the last time counts
        ([5, 1, 2, 3, 8, 2, 3, 6, 1, 2, 3], [8, 2, 3]),  # a longer find before a later one
        ([4, 4, 4], [4]),  # it may overlap with what is looked for
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_an_n_gram_is_followed_by_what_followed_it_last(text, drafts):
    assert NGram(longest=3).propose([asked(text, 3)])[0].tokens == tuple(drafts)


# the target itself, in less


def test_the_first_layers_are_the_targets_own_parameters():
    target = build(SMALL, dtype=torch.float64)
    draft = first_layers(target, 2)
    own = {id(parameter) for parameter in target.parameters()}
    assert all(id(parameter) in own for parameter in draft.parameters())
    tokens = torch.randint(61, (2, 9))
    assert torch.equal(first_layers(target, 3)(tokens), target(tokens))
    assert not torch.equal(draft(tokens), target(tokens))
    assert len(target.blocks) == target.config.layers == 3, "the target is as it was"
    for layers in (0, 4):
        with pytest.raises(InputError, match="3 layers"):
            first_layers(target, layers)


def test_more_bits_are_accepted_more_often():
    target = toys.trained()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    texts = own_text(target, [1], 4, 40, generator=torch.Generator().manual_seed(0)).tokens
    drafts = [quantized_draft(target, name) for name in ("int8", "nf4", "int3-g16", "int2-g16")]
    found = [float(measure_acceptance(target, draft, texts).mean()) for draft in drafts]
    assert found == sorted(found, reverse=True) and found[0] > 0.97 and found[-1] < found[0] - 0.1
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    greedy = measure_acceptance(target, drafts[0], texts, GREEDY)
    assert set(greedy.unique().tolist()) <= {0.0, 1.0} and greedy.mean() > 0.9


def test_packed_kernels_are_left_out_where_they_do_not_run(monkeypatch):
    assert isinstance(quantized_draft(build(SMALL)).head, Int8PackedLinear)
    monkeypatch.setattr("minitrain.quantization.formats.weight.checked", torch.Tensor.float)
    assert type(quantized_draft(build(SMALL, device="meta")).head) is QuantLinear


def test_a_text_that_is_too_long_for_the_draft_gets_none():
    proposer = DraftModel(build(SMALL), longest=10)
    assert [len(proposer.propose([asked([1] * n, 3)])[0].tokens) for n in (6, 7, 8)] == [3, 3, 0]


# heads


@lru_cache
def learned() -> tuple[Lessons, Lessons]:
    texts = own_text(toys.trained(), [1], 160, 40, generator=torch.Generator().manual_seed(1))
    return Lessons(*(z[:120] for z in texts)), Lessons(*(z[120:] for z in texts))


def test_own_text_is_drawn_from_the_target_and_its_hidden_vectors_are_its_own():
    target, texts = toys.trained(), learned()[1]
    logits = target(texts.tokens)
    torch.testing.assert_close(target.head(texts.hidden), logits, rtol=1e-4, atol=1e-4)
    said = logits[:, :-1].log_softmax(dim=-1).gather(2, texts.tokens[:, 1:, None])
    entropy = torch.distributions.Categorical(logits=logits[:, :-1]).entropy()
    assert (-said.mean() - entropy.mean()).abs() < 0.15, "its own text surprises it as expected"
    with pytest.raises(InputError, match="one token at least"):
        own_text(target, [], 2, 5)


def test_the_shortlist_has_the_frequent_tokens():
    tokens = torch.tensor([[5, 5, 5, 9, 9, 2]])
    assert frequent(tokens, 2).tolist() == [5, 9]
    assert frequent(tokens, 99).tolist() == [2, 5, 9]


COURSE = Course(steps=60, texts=24, lr=1e-2)


@lru_cache
def trained_heads():
    target, (lessons, _) = toys.trained(), learned()
    shortlist = frequent(lessons.tokens, 200)
    heads = MedusaHeads(target, shortlist, heads=3), EagleLayer(target, shortlist)
    untrained = MedusaHeads(target, shortlist, heads=3), EagleLayer(target, shortlist)
    return target, heads, untrained, [train(head, lessons, COURSE) for head in heads]


def test_heads_learn_and_what_they_learned_is_kept():
    target, heads, untrained, losses = trained_heads()
    held_out = learned()[1]
    for head, before, course in zip(heads, untrained, losses):
        assert course[-1] < 0.8 * course[0]
        assert head.loss(held_out) < 0.8 * before.loss(held_out)
    prompts = held_out.tokens[:8, :6].tolist()

    def kept(proposer):
        answers = speculate(target, proposer, prompts, GREEDY, 4)
        return sum(len(one.tokens) - len(set(one.times.tokens)) for one in answers)

    for make in (
        lambda pair: Eagle(pair[1], rows=8),
        lambda pair: Medusa(pair[0], best_tree(pair[0].accuracy(held_out), 4)),
    ):
        assert kept(make(heads)) > 1.2 * kept(make(untrained))


def test_medusa_offers_its_best_ranks_in_its_tree():
    heads, held_out = trained_heads()[1][0], learned()[1]
    proposer = Medusa(heads, best_tree(heads.accuracy(held_out), 7))
    hidden = held_out.hidden[0, 3:5]
    (draft,) = proposer.propose([asked([1, 2, 3], 7, hidden=hidden)])
    best = heads.shortlist[heads(hidden[-1]).topk(8, dim=-1).indices]  # (K, ranks)
    for token, path in zip(draft.tokens, proposer.branches):
        assert token == best[len(path) - 1, path[-1]]
    fewer = proposer.propose([asked([1, 2, 3], 3, hidden=hidden)])[0]
    assert fewer.tokens == draft.tokens[:3] and fewer.parents == draft.parents[:3]
    assert proposer.propose([asked([1, 2, 3], 3)])[0].tokens == (), "before anything was read"


def test_eagle_drafts_what_it_would_without_a_cache():
    """And so after a text whose hidden vectors were lost, from those that there are."""
    layer = trained_heads()[1][1]
    tokens = learned()[1].tokens[0, :9].tolist()
    hidden = learned()[1].hidden[0, :9]

    def by_hand(first):
        text, h, found = tokens[first + 1 :], hidden[first : len(tokens) - 1], []
        for _ in range(3):
            with torch.no_grad():
                guess = layer(torch.tensor([text]), h[None])[0, -1:]
            found.append(int(layer.shortlist[layer.logits(guess)[0].argmax()]))
            text, h = [*text, found[-1]], torch.cat((h, guess))
        return tuple(found)

    proposer = Eagle(layer, rows=1)
    proposer.propose([asked(tokens[:6], 3, hidden=hidden[:5])])
    assert proposer.propose([asked(tokens, 3, hidden=hidden[5:8])])[0].tokens == by_hand(0)
    proposer.propose([asked([1, 2], 2, key="another", hidden=hidden[:1])])  # takes the row
    assert proposer.propose([asked(tokens, 3, hidden=hidden[6:8])])[0].tokens == by_hand(6)
