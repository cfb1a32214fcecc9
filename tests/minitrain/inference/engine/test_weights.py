"""A cache, and a head laid out, of the weights as they are now."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.merging import disabled, merge, merge_and_unload, unload, unmerge
from minitrain.finetuning.model import adapt
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.runner import Head, can_be_laid_out
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build

from .test_engine import SMALL, lora_of

PROMPT = list(range(3, 40))
ANSWER = SamplingParameters(6)


def fresh(seed: int = 0) -> Transformer:
    return build(SMALL, dtype=torch.float64, seed=seed)


def trained(**options) -> object:
    """A step of AdamW; the fused one does not count a parameter's version up."""

    def step(model: Transformer) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        model(torch.tensor([PROMPT])).log_softmax(dim=-1).mean().backward()
        optimizer.step()

    return step


def moved(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * torch.rand_like(parameter)


def written(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1 + torch.rand_like(parameter))


CHANGES = {
    "AdamW": trained(),
    "fused AdamW": trained(fused=True),
    "foreach AdamW": trained(foreach=True),
    ".data written": written,
    ".data exchanged": moved,
    "another state": lambda model: model.load_state_dict(fresh(5).state_dict()),
    "assigned": lambda model: model.load_state_dict(fresh(6).state_dict(), assign=True),
    "another module": lambda model: setattr(model.blocks[0], "mlp", fresh(7).blocks[0].mlp),
    "a hook": lambda model: model.blocks[0].attention.o.register_forward_hook(
        lambda module, given, out: 0 * out
    ),
    "float32": lambda model: model.float(),
    "bfloat16": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_weights_answer_for_themselves(name):
    model = fresh()
    engine = Engine(model, 60, block_size=4)
    engine.generate([PROMPT], ANSWER)
    CHANGES[name](model)
    found = engine.generate([PROMPT], ANSWER)[0].tokens
    assert found == Engine(model, 60, block_size=4).generate([PROMPT], ANSWER)[0].tokens
    if name != "bfloat16":  # in which a tie may be broken either way
        assert found == generate(model, PROMPT, 6, temperature=0)
    assert engine.runner.cache.keys.dtype == model.embed.weight.dtype


def test_unchanged_weights_are_reused():
    engine = Engine(fresh(), 60, block_size=4)
    for _ in range(3):
        engine.generate([PROMPT], ANSWER)
    assert sum(step.tokens for step in engine.steps) == 37 + 5 + 2 * (1 + 5)
    assert engine.steps[-1].hit_rate > 0.4


def test_an_answer_goes_on_by_the_new_weights():
    model = fresh()
    engine = Engine(model, 60, block_size=4)
    engine.add(PROMPT, SamplingParameters(8))
    begun = [engine.step()[0].drawn.token for _ in range(3)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    wanted = generate(model, PROMPT + begun, 5, temperature=0)
    assert [output.drawn.token for output in engine.stream()] == wanted


def test_an_adapter_is_switched_merged_and_replaced():
    model = lora_of(1, 2)
    engine = Engine(model, 60, block_size=4)
    answers = []

    def check(state=nullcontext) -> None:
        with state(model) if state is disabled else state():
            answers.append(engine.generate([PROMPT], ANSWER)[0].tokens)
            assert answers[-1] == generate(model, PROMPT, 6, temperature=0)

    check(), check(disabled), check()
    merge(model), check(), check(disabled)
    unmerge(model), check()
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = 0.3
    check()
    unload(model), check()
    adapt(model, "lora", rank=2, alpha=64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("B"):
                parameter.normal_()
    check(), merge_and_unload(model), check()
    assert len({tuple(answer) for answer in answers}) >= 3


def test_dropout_is_refused_until_it_is_off():
    model = adapt(fresh(), "lora", rank=2, alpha=8, dropout=0.5).train()
    engine = Engine(model, 60)
    with pytest.raises(InputError, match=r"drops 50% of its numbers .* model.eval\(\)"):
        engine.generate([PROMPT], ANSWER)
    model.eval()
    assert engine.generate([PROMPT], ANSWER)[0].tokens == generate(model, PROMPT, 6, temperature=0)
    model.train()
    with pytest.raises(InputError, match="training mode"):
        engine.generate([PROMPT], ANSWER)


def test_inference_mode_may_begin_and_end_anywhere():
    for made, first in ((True, True), (True, False), (False, True)):
        with torch.inference_mode(made):
            model = fresh()
            engine = Engine(model, 60, block_size=4)
        wanted = generate(model, PROMPT, 6, temperature=0)
        for mode in (first, not first):
            with torch.inference_mode(mode):
                assert engine.generate([PROMPT], ANSWER)[0].tokens == wanted


def small():
    return build(ModelConfig(512, 64, 2, 4, 4, 128), seed=0)


@torch.no_grad()
def test_the_logits_are_the_models_for_any_number_of_rows():
    model = small()
    head = Head(model)
    for rows in (0, 1, 3, 64, 200):
        hidden = torch.randn(rows, 1, 64)
        torch.testing.assert_close(head(hidden), model.head(hidden))


@torch.no_grad()
def test_a_weight_that_has_changed_is_laid_out_anew():
    model = small()
    head, hidden = Head(model), torch.randn(4, 1, 64)
    before = head(hidden)
    model.head.weight.mul_(2)
    torch.testing.assert_close(head(hidden), 2 * before)
    model.head = nn.Linear(64, 512, bias=True)
    torch.testing.assert_close(head(hidden), model.head(hidden))


def test_another_kind_of_head_is_called_as_it_is():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = small()
    model.head = Doubled(64, 512, bias=False)
    hidden = torch.randn(4, 1, 64)
    assert not can_be_laid_out(model.head) and not can_be_laid_out(nn.Linear(64, 512).double())
    assert torch.equal(Head(model)(hidden), model.head(hidden))
