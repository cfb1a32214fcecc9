from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.errors import InputError
from minitrain.measure.parameters import parameter_count
from minitrain.planning.hardware import find_chip
from minitrain.planning.search import USABLE, plan_in_words, search, why

from .cases import LLAMA, MIXTURE


@pytest.fixture(scope="module")
def found():
    return search(LLAMA, "H100-SXM-80GB", 64, 8192, 512)


def test_the_best_come_first_each_with_a_reason(found):
    seconds = [step.seconds for step in found.steps]
    assert len(seconds) == 5 and seconds == sorted(seconds)
    assert found.reasons[0] == "the fastest"
    assert all("% slower: " in reason for reason in found.reasons[1:])
    assert len({plan_in_words(step.run.plan) for step in found.steps}) == 5


def test_no_plan_over_memory_is_offered(found):
    assert all(step.memory.total <= USABLE * 80e9 for step in found.steps)
    small = replace(find_chip("A100-SXM-40GB"), memory=24e9)
    steps = search(LLAMA, small, 64, 2048, 512).steps
    assert steps and all(step.memory.total <= USABLE * 24e9 for step in steps)


def test_a_plan_uses_the_whole_cluster_and_batch(found):
    for step in found.steps:
        assert step.run.gpus == 64 and step.run.tokens == 512 * 8192


def test_a_reason_names_what_costs_more(found):
    best, other = found.steps[0], found.steps[-1]
    slower = replace(other, parts=best.parts | {"bubble": best.parts.get("bubble", 0) + 1.0})
    assert "pipeline bubble" in why(replace(slower, seconds=best.seconds + 1), best)


def test_a_mixture_may_spread_its_experts():
    steps = search(MIXTURE, "H100-SXM-80GB", 32, 4096, 256).steps
    assert steps[0].tokens_per_second > 0
    assert parameter_count(MIXTURE, 4096) > 2e9


@pytest.mark.parametrize(
    "chip,gpus,batch,words",
    [
        ("A100-SXM-40GB", 1, 8, "does not fit: its leanest plan needs .* use about"),
        ("H100-SXM-80GB", 37, 16, "no cut of global_batch 16 over 37 gpus"),
        ("A100", 8, 64, "no chip is called 'A100'"),
    ],
)
def test_what_cannot_be_says_what_would(chip, gpus, batch, words):
    with pytest.raises(InputError, match=words):
        search(LLAMA, chip, gpus, 8192, batch)
