"""Linear layers whose matmuls run in few bits; delayed scaling's history."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.optimizers.adamw import adamw
from minitrain.precision.blocks import Scaling, float32_scale, quantize
from minitrain.precision.delayed_scaling import ACTIVATION, GRADIENT, WEIGHT, roll_histories
from minitrain.precision.formats import E2M1, E4M3, E5M2
from minitrain.precision.low_bit_linear import (
    CURRENT,
    DEEPSEEK,
    DELAYED,
    MXFP4,
    MXFP8,
    NVFP4,
    QuantizedLinear,
    Recipe,
    after_step,
    convert,
    follow,
    has_fp8_matmul,
    matmul,
    matmul_naive,
    scaled_mm,
)

RECIPES = {"current": CURRENT, "DeepSeek": DEEPSEEK, "MXFP8": MXFP8, "MXFP4": MXFP4, "NVFP4": NVFP4}
T, D, OUT = 160, 192, 144  # no tile of 128 divides any of them


def layer(recipe: Recipe, bias: bool = False) -> tuple[QuantizedLinear, nn.Linear]:
    """A quantized layer and its high-precision twin, which has the same weight."""
    torch.manual_seed(0)
    linear = nn.Linear(D, OUT, bias=bias)
    return QuantizedLinear(copy.deepcopy(linear), recipe), linear


def rows(width: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(T, width, generator=torch.Generator().manual_seed(seed))


def run(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    return {"y": y.detach(), "dx": x.grad, "dW": module.weight.grad}


# ---- the matmuls ----


@pytest.mark.parametrize("name", RECIPES)
def test_one_matmul_equals_promotion_block_by_block(name):
    recipe = RECIPES[name]
    a, b = quantize(rows(D), recipe.activation), quantize(rows(D, 2)[:OUT], recipe.weight)
    block = 128 if recipe.activation.tile is None else recipe.activation.tile[1]
    expected = a.dequantize().double() @ b.dequantize().double().t()
    torch.testing.assert_close(matmul_naive(a, b, block).double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(matmul(a, b).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("forms", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)])
def test_emulated_equals_torchs_fp8_matmul(forms):
    scalings = [Scaling(form, None, float32_scale) for form in forms]
    a, b = (quantize(rows(D, seed), scaling) for seed, scaling in enumerate(scalings))
    torch.testing.assert_close(matmul(a, b), scaled_mm(a, b), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and has_fp8_matmul(torch.device("cuda"))),
    reason="no GPU with FP8 matmuls (compute capability 8.9 or more) is here",
)
def test_the_devices_units_equal_the_emulation():
    x, dy = rows(D), rows(OUT, 2)
    on_cpu = run(layer(CURRENT)[0], x, dy)
    on_gpu = run(layer(CURRENT)[0].cuda(), x.cuda(), dy.cuda())
    for name, expected in on_cpu.items():
        torch.testing.assert_close(on_gpu[name].cpu(), expected, rtol=2e-3, atol=2e-3)


# ---- the layer ----


@pytest.mark.parametrize("name", RECIPES)
def test_each_operand_of_each_matmul_is_quantized_along_its_sum(name):
    recipe = RECIPES[name]
    ours, _ = layer(recipe)
    x, dy, weight = rows(D), rows(OUT, 2), ours.weight.detach()

    def q(matrix, scaling):
        return quantize(matrix, scaling).dequantize()

    x_t = q(q(x, recipe.activation).t(), recipe.activation) if recipe.retiled else q(x.t(), recipe.activation)  # fmt: skip
    expected = {
        "y": q(x, recipe.activation) @ q(weight, recipe.weight).t(),
        "dx": q(dy, recipe.gradient) @ q(weight.t(), recipe.weight).t(),
        "dW": q(dy.t(), recipe.gradient) @ x_t.t(),
    }
    for key, found in run(ours, x, dy).items():
        torch.testing.assert_close(found, expected[key], rtol=1e-5, atol=1e-4, msg=key)


def test_more_dimensions_biases_frozen_weights_and_no_gradients():
    ours, _ = layer(DEEPSEEK, bias=True)
    x = rows(D).unflatten(0, (4, 40)).requires_grad_()
    ours(x).sum().backward()
    assert ours(x).shape == (4, 40, OUT) and x.grad.shape == x.shape
    torch.testing.assert_close(ours.bias.grad, torch.full((OUT,), 160.0))
    with torch.no_grad():
        assert torch.equal(ours(x)[1, 2], ours(x[1, 2].unsqueeze(0))[0])
    with torch.autocast("cpu", torch.bfloat16):  # rounds what comes out and nothing within
        cast = ours(x)
    assert cast.dtype == torch.bfloat16 and torch.equal(cast, ours(x).bfloat16())
    ours.weight.requires_grad_(False)
    ours.zero_grad()
    ours(x).sum().backward()
    assert ours.weight.grad is None


def kept_bytes(module: nn.Module, x: torch.Tensor) -> int:
    with MemoryLedger(module) as ledger:
        y = module(x)
    assert y.requires_grad
    return ledger.now["activations"]


def test_backward_keeps_the_activations_in_a_byte():
    ours, _ = layer(CURRENT)
    x = rows(D).requires_grad_()
    weights = OUT * D + 8  # the transposed weight, and its scales
    assert kept_bytes(ours, x) <= T * D + 8 + weights
    fp4, _ = layer(NVFP4)
    assert kept_bytes(fp4, x) < 0.6 * (T * D + OUT * D) + 8


# ---- a model ----


def model(layers: int = 2) -> nn.Module:
    return build(ModelConfig(64, 32, layers=layers, heads=4, kv_heads=2, ffn_size=48))


def test_blocks_are_converted_and_the_rest_stays():
    before = model()
    names = [name for name, _ in before.named_parameters()]
    after = convert(before, DEEPSEEK)
    assert [name for name, _ in after.named_parameters()] == names
    kinds = {n: type(m) for n, m in after.named_modules() if isinstance(m, nn.Linear)}
    assert kinds.pop("head") is nn.Linear and len(kinds) == 14
    assert set(kinds.values()) == {QuantizedLinear}
    assert type(after.embed) is nn.Embedding
    with pytest.raises(InputError, match="has no nn"):
        convert(nn.Sequential(nn.ReLU()), DEEPSEEK)
    with pytest.raises(InputError, match="tile=None"):
        Recipe(DEEPSEEK.activation, DEEPSEEK.weight, DEEPSEEK.gradient, history=4)
    assert type(convert(model(), CURRENT, keep=()).head) is QuantizedLinear


def test_a_weights_cast_is_made_once_a_step_and_anew_after_it():
    torch.manual_seed(0)
    net, tokens = convert(model(), DELAYED), torch.randint(64, (2, 8))
    optimizer = adamw(net, lr=0.1)  # fused: moves weights without counting their version up
    follow(net, optimizer)
    net(tokens).sum().backward()
    cast = net.blocks[0].mlp.up.kept_casts[0]
    net(tokens).sum().backward()  # the second microbatch
    assert net.blocks[0].mlp.up.kept_casts[0] is cast
    optimizer.step()
    logits = net(tokens)
    fresh = copy.deepcopy(net)
    after_step(fresh)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(logits, fresh(tokens))


def test_a_loaded_weight_is_cast_anew():
    net, other, tokens = convert(model(), CURRENT), model(), torch.randint(64, (2, 8))
    follow(net, adamw(net, lr=0.1))
    net(tokens)
    with torch.no_grad():
        other.blocks[0].mlp.up.weight.mul_(2)
    net.load_state_dict(other.state_dict())
    assert torch.equal(net(tokens), convert(other, CURRENT)(tokens))


def test_a_small_block_fp8_model_learns_as_in_high_precision():
    torch.manual_seed(0)
    tokens = torch.randint(64, (4, 32))
    tokens[:, 1::2] = tokens[:, 0::2]  # every second token repeats the one before it

    def train(net):
        optimizer = adamw(net, lr=0.01)
        follow(net, optimizer)
        for _ in range(40):
            loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    reference = train(model(1))
    assert reference < 0.2  # from ln 64 = 4.16
    assert train(convert(model(1), DEEPSEEK)) == pytest.approx(reference, abs=0.02)
    assert train(convert(model(1), DELAYED)) == pytest.approx(reference, abs=0.02)
    coarse = Scaling(E2M1, None, float32_scale)  # 4 bits under one scale
    assert train(convert(model(1), Recipe(coarse, coarse, coarse))) > reference + 0.05


@pytest.mark.parametrize("recipe", [CURRENT, DELAYED, DEEPSEEK, MXFP4])
def test_no_rows_and_one_vector_are_read_as_nn_linear_reads_them(recipe):
    layer = QuantizedLinear(nn.Linear(64, 32), recipe)
    x = torch.randn(64)
    assert torch.equal(layer(x), layer(x[None])[0])
    empty = torch.zeros(2, 0, 64, requires_grad=True)
    y = layer(empty)
    y.sum().backward()
    assert y.shape == (2, 0, 32) and empty.grad.shape == (2, 0, 64)
    assert layer.weight.grad.count_nonzero() == 0


# Delayed scaling


def delayed() -> QuantizedLinear:
    torch.manual_seed(0)
    return QuantizedLinear(nn.Linear(8, 16, bias=False), DELAYED)


def pass_through(module: nn.Module, largest: float, gradient: float = 1.0) -> torch.Tensor:
    """Forward and backward of an x whose largest number is `largest`; gives what came out."""
    x = torch.full((4, 8), largest / 2)
    x[1, 2] = -largest
    y = module(x)
    y.backward(torch.full_like(y, gradient))
    return y.detach()


def test_the_largest_of_all_microbatches_counts():
    module = delayed()
    for largest in (3.0, 50.0, 7.0):  # the last microbatch is not the largest
        pass_through(module, largest, gradient=largest / 100)
    after_step(module)
    newest = module.amax.past[0]
    assert newest[ACTIVATION] == 50.0 and newest[GRADIENT] == 0.5
    assert newest[WEIGHT] == module.weight.abs().max()
    assert module.amax.past[1:].count_nonzero() == 0


def test_the_scale_is_of_the_past_and_what_has_grown_is_clamped():
    module = delayed()
    pass_through(module, 2.0)  # the first step has no past, and scales by what it sees
    after_step(module)
    grown = torch.full((4, 8), 4.0)
    torch.testing.assert_close(module(grown), module(torch.full((4, 8), 2.0)))
    pass_through(module, 4.0)
    after_step(module)
    assert not torch.allclose(module(grown), module(torch.full((4, 8), 2.0)))


def test_the_past_is_so_many_steps_long():
    module = delayed()
    for step in range(DELAYED.history + 1):
        pass_through(module, 100.0 if step == 0 else 1.0)
        after_step(module)
        expected = 100.0 if step < DELAYED.history else 1.0
        assert module.amax.past[:, ACTIVATION].max() == expected


def test_only_what_ran_is_rolled():
    both = nn.ModuleList([delayed(), delayed()])
    for module in both:
        pass_through(module, 3.0)
    after_step(both)
    idle = both[1].amax.past.clone()
    for _ in range(DELAYED.history + 4):  # long enough to push an idle layer's past out
        pass_through(both[0], 5.0)
        after_step(both)
    assert torch.equal(both[1].amax.past, idle)
    with torch.no_grad():  # forward alone, in evaluation, is no run either
        both[1](torch.full((4, 8), 1e3))
    roll_histories(both)
    assert torch.equal(both[1].amax.past, idle)


def test_a_forward_without_backward_leaves_the_gradients_past():
    module = delayed()
    pass_through(module, 3.0)
    after_step(module)
    module(torch.ones(4, 8))
    after_step(module)
    assert module.amax.past[:2, ACTIVATION].tolist() == [1.0, 3.0]
    assert module.amax.past[:2, GRADIENT].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38])
def test_a_tiny_magnitude_gives_a_finite_scale(largest):
    module = delayed()
    for _ in range(3):
        assert pass_through(module, largest, gradient=largest).isfinite().all()
        after_step(module)
    assert module.weight.grad.isfinite().all()


def test_the_history_is_in_the_state():
    module = delayed()
    for largest in (9.0, 2.0):
        pass_through(module, largest)
        after_step(module)
    state = copy.deepcopy(module.state_dict())
    resumed = QuantizedLinear(nn.Linear(8, 16, bias=False), DELAYED)
    resumed.load_state_dict(state)
    assert torch.equal(pass_through(resumed, 2.5), pass_through(module, 2.5))


def one_rank(group):
    """Rank 1 has the outlier; and on rank 0 the second layer does not run."""
    both = nn.ModuleList([delayed(), delayed()])
    pass_through(both[0], 90.0 if group.rank == 1 else 1.0)
    if group.rank == 1:
        pass_through(both[1], 6.0)
    after_step(both, lambda tensor: group.all_reduce(tensor, op="max"))
    return [m.amax.past for m in both], group.trace.count("all_reduce")


def test_ranks_agree_on_the_largest_of_all_in_one_message():
    launch = pytest.importorskip("minitrain.ranks.launch").launch
    (first, messages), (second, _) = launch(one_rank, ranks=2)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first[0][0, ACTIVATION] == 90.0 and first[1][0, ACTIVATION] == 6.0
    assert messages == 1
