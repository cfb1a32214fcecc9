"""The distribution of what verification writes, over 200,000 draws, and of what wrong rules write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.sampling import cut
from minitrain.inference.speculation.verification import verify, verify_naive

DRAWS, V = 200_000, 8
SURE = 1e-6  # of a wrong rule, one in a million chances to be right; ours has one in 1,000 to fail


def chain(seed: int, spread: float) -> torch.Tensor:
    """(V, V): the distribution after each token."""
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(V, V, generator=generator)).softmax(dim=-1)


TARGET, DRAFT = chain(0, 1.2), chain(1, 1.0)


def p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Chi-square: how probable so large a distance is; a token of probability 0 must never come."""
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    expected = expected[possible].double() * counts.sum()
    chi2 = ((counts[possible] - expected) ** 2 / expected).sum()
    return float(
        torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2.0).double(), chi2 / 2)
    )


def ours(p, q, drafts, generator):
    uniforms = torch.rand(drafts.shape[0], drafts.shape[1] + 1, generator=generator)
    return verify(p, q, drafts, uniforms)


def by_rule(accept: Callable, rest: Callable, p, q, drafts, generator):
    """The same loop over a batch, with other rules of what is kept and what replaces it."""
    tokens = torch.full((len(drafts), drafts.shape[1] + 1), -1)
    going = torch.ones(len(drafts), dtype=torch.bool)
    kept = torch.zeros(len(drafts), dtype=torch.long)
    for i in range(drafts.shape[1]):
        coins = torch.rand(len(drafts), generator=generator)
        keep = going & accept(p[:, i], q[:, i], drafts[:, i], coins)
        stop = going & ~keep
        tokens[keep, i], kept = drafts[keep, i], kept + keep.long()
        weights = rest(p[stop, i], q[stop, i])
        tokens[stop, i] = torch.multinomial(weights, 1, generator=generator)[:, 0]
        going = keep
    bonus = torch.multinomial(p[going, -1], 1, generator=generator)[:, 0]
    tokens[going, -1] = bonus
    return tokens, kept


def of(z, drafts):
    return z.gather(1, drafts[:, None])[:, 0]


def ratio(p, q, drafts, coins):
    return coins * of(q, drafts) < of(p, drafts)


def positive_part(p, q):
    return (p - q).clamp(min=0)


def typical(p, q, drafts, coins):
    """Medusa's "typical acceptance": what is likely enough for how uncertain the target is."""
    entropy = -(p * p.log()).sum(dim=1)
    return of(p, drafts) > torch.minimum(torch.tensor(0.3), 0.6 * (-entropy).exp())


def sure_draft(p, q, drafts, coins):
    """The p_accept heuristic of serving engines: what the draft model was sure of is kept."""
    return (of(q, drafts) > 0.15) | ratio(p, q, drafts, coins)


def not_renormalised(p, q):
    """Draws by the sum of (p - q)+, as if it came to 1: what is missing falls to the last token."""
    rest = positive_part(p, q)
    rest[:, -1] += 1 - rest.sum(dim=1)
    return rest


WRONG = {
    "resample from p": partial(by_rule, ratio, lambda p, q: p),
    "typical acceptance": partial(by_rule, typical, positive_part),
    "p_accept heuristic": partial(by_rule, sure_draft, positive_part),
    "residual not renormalised": partial(by_rule, ratio, not_renormalised),
    "absolute residual": partial(by_rule, ratio, lambda p, q: (p - q).abs()),
    "ratio the wrong way": partial(
        by_rule, lambda p, q, x, u: u * of(p, x) < of(q, x), positive_part
    ),
}
RIGHT = {
    "ours": ours,
    "the same by the loop of the wrong ones": partial(by_rule, ratio, positive_part),
}


def first_tokens(rule, count: int, length: int, target=TARGET, draft=DRAFT) -> torch.Tensor:
    """DRAWS texts of `count` tokens after token 0, (DRAWS, count): drafts of `length` tokens drawn
    from one Markov chain, verified against another, round by round."""
    generator = torch.Generator().manual_seed(0)
    text = torch.full((DRAWS, count + length + 1), -1)
    last, written = torch.zeros(DRAWS, dtype=torch.long), torch.zeros(DRAWS, dtype=torch.long)
    while (short := written < count).any():
        at, drafts, q, p = last[short], [], [], []
        for _ in range(length):
            q.append(draft[at]), p.append(target[at])
            at = torch.multinomial(q[-1], 1, generator=generator)[:, 0]
            drafts.append(at)
        p.append(target[at])
        tokens, kept = rule(torch.stack(p, 1), torch.stack(q, 1), torch.stack(drafts, 1), generator)
        columns = written[short][:, None] + torch.arange(length + 1)
        text[short.nonzero(), columns] = torch.where(
            tokens < 0, text[short.nonzero(), columns], tokens
        )
        last[short] = tokens.gather(1, kept[:, None])[:, 0]
        written[short] += kept + 1
    return text[:, :count]


def joint(count: int, target=TARGET) -> torch.Tensor:
    """(V ** count,): the target's own probability of each text of `count` tokens after token 0."""
    p = target[0]
    for _ in range(count - 1):
        p = (p[:, None] * target.repeat(len(p) // V, 1)).flatten()
    return p


def judged(rule, count: int, length: int, target=TARGET, draft=DRAFT) -> list[float]:
    """p-values of the first tokens, of the first pairs, … up to `count` tokens."""
    text, found = first_tokens(rule, count, length, target, draft), []
    for size in range(1, count + 1):
        number = sum(text[:, i] * V ** (size - 1 - i) for i in range(size))
        counts = torch.bincount(number, minlength=V**size).double()
        found.append(p_value(counts, joint(size, target)))
    return found


@pytest.mark.parametrize(("rule", "count", "length"), [(0, 2, 1), (0, 3, 2), (1, 2, 1)])
def test_texts_are_distributed_as_the_targets_own(rule, count, length):
    """Single tokens, pairs, and triples: kept ones, recovered ones and bonus tokens."""
    assert min(judged(list(RIGHT.values())[rule], count, length)) > 1e-3


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_rule_is_seen_in_single_tokens_and_in_pairs(rule):
    assert max(judged(WRONG[rule], 2, 2)) < SURE


def test_a_distribution_of_the_place_before_is_seen_in_pairs_alone():
    def stale(p, q, drafts, generator):
        return ours(p[:, [0, *range(p.shape[1] - 1)]], q, drafts, generator)

    single, pair = judged(stale, 2, 2)
    assert single > 1e-3 and pair < SURE


@pytest.mark.parametrize("cuts", [{"top_k": 3}, {"top_k": 6, "top_p": 0.7}])
def test_cuts_come_before_the_ratio_in_both(cuts):
    cut_target, cut_draft = (cut(z.log() / 0.7, **cuts).softmax(dim=-1) for z in (TARGET, DRAFT))
    assert (cut_target == 0).any()
    assert min(judged(ours, 2, 2, cut_target, cut_draft)) > 1e-3
    assert min(judged(ours, 2, 2, TARGET, cut_draft)) > 1e-3  # q may be cut otherwise, if it is q


def test_a_q_from_before_the_cut_is_seen():
    """The draft drew after top-k, and q is handed over without it."""
    cut_draft = cut(DRAFT.log(), top_k=3).softmax(dim=-1)

    def uncut_q(p, q, drafts, generator):
        return ours(p, DRAFT[:1].expand_as(q), drafts, generator)

    assert judged(uncut_q, 1, 1, TARGET, cut_draft)[0] < SURE


def test_the_naive_one_draws_from_the_same_distribution():
    generator, found = torch.Generator().manual_seed(0), torch.zeros(V)
    drafts = torch.multinomial(DRAFT[0], 4000, replacement=True, generator=generator)
    for draft in drafts.tolist():
        p = torch.stack((TARGET[0], TARGET[draft]))
        found[verify_naive(p, DRAFT[:1], [draft], generator)[0]] += 1
    assert p_value(found.double(), TARGET[0]) > 1e-3


def test_at_temperature_0_the_targets_greedy_tokens_are_kept_and_no_others():
    best = torch.tensor([[3, 1, 4, 2], [3, 1, 4, 2], [3, 1, 4, 2]])
    p = torch.nn.functional.one_hot(best, V).float()
    drafts = torch.tensor([[3, 1, 4], [3, 0, 4], [7, 1, 4]])
    for q in (DRAFT[drafts], torch.nn.functional.one_hot(drafts, V).float()):
        tokens, kept = verify(p, q, drafts, torch.rand(3, 4))
        assert kept.tolist() == [3, 1, 0]
        assert tokens.tolist() == [[3, 1, 4, 2], [3, 1, -1, -1], [3, -1, -1, -1]]


def test_a_draft_that_the_target_cannot_write_is_never_kept():
    p = TARGET[0].index_fill(0, torch.tensor([5]), 0.0)
    p = (p / p.sum()).repeat(10_000, 2, 1)
    drafts = torch.full((10_000, 1), 5)
    tokens, kept = verify(p, DRAFT[:1].repeat(10_000, 1, 1), drafts, torch.zeros(10_000, 2))
    assert not kept.any() and (tokens[:, 0] != 5).all()
    uniforms = torch.rand(10_000, 2)
    assert (verify(p, DRAFT[:1].repeat(10_000, 1, 1), drafts, uniforms)[0][:, 0] != 5).all()


def test_unequal_lengths_are_each_as_alone():
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([3, 0, 2, 1])
    p, q = TARGET[torch.randint(V, (4, 4))], DRAFT[torch.randint(V, (4, 3))]
    drafts = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(4, 3)
    uniforms = torch.rand(4, 4, generator=generator)
    tokens, kept = verify(p, q, drafts, uniforms, lengths)
    for row, n in enumerate(lengths.tolist()):
        at = torch.tensor([*range(n), 3])  # the last number is that of the last token
        alone, kept_alone = verify(
            p[row : row + 1, : n + 1],
            q[row : row + 1, :n],
            drafts[row : row + 1, :n],
            uniforms[row : row + 1, at],
        )
        assert kept[row] == kept_alone[0] <= n
        assert tokens[row, : n + 1].tolist() == alone[0].tolist()
        assert (tokens[row, n + 1 :] == -1).all()


def test_rounding_leaves_something_to_draw_from():
    """p and q equal, and a coin so near 1 that coin·q rounds up to q."""
    p = TARGET[:1].repeat(1, 2, 1).view(1, 2, V)
    coin = torch.tensor([[1 - 2**-24, 0.5]])
    for draft in range(V):
        tokens, _ = verify(p, p[:, :1], torch.tensor([[draft]]), coin)
        assert 0 <= tokens[0, 0] < V and p[0, 0, tokens[0, 0]] > 0


def test_a_draft_that_cannot_have_been_drawn_is_refused():
    p, q, drafts = TARGET[None, :3], DRAFT[None, :2].clone(), torch.tensor([[1, 2]])
    q[0, 1, 2] = 0
    with pytest.raises(InputError, match="probability 0 in q"):
        verify(p, q, drafts, torch.rand(1, 3))
    verify(p, q, drafts, torch.rand(1, 3), torch.tensor([1]))  # it is no draft
