"""A sharded model outside of its forward: whole in a context, whole on disk, or one sentence."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from minitrain.errors import InputError
from minitrain.inference.sampling import generate
from minitrain.parallel.zero.stage_3 import Zero3, blocks_of
from minitrain.parallel.zero.state import (
    full_gradients,
    full_state_dict,
    load_full_state_dict,
)
from minitrain.ranks.launch import launch

from . import zero_toys as toys

USES = {
    "print": repr,
    ".data": lambda p: p.data,
    ".grad": lambda p: p.grad,
    ".to()": lambda p: p.to(torch.float16),
    "deepcopy": copy.deepcopy,
    "arithmetic": lambda p: p + 1,
    "in a list": lambda p: torch.cat([p, p]),
    "by name": lambda p: torch.clone(input=p),
    "item": lambda p: p.flatten()[0].item(),
    "numpy": lambda p: p.detach().numpy(),
    "save": lambda p: torch.save(p, "/dev/null"),
    "init": lambda p: nn.init.zeros_(p),
}


def freed(group):
    zero = toys.wrap(toys.toy(), group, 3)
    tokens = toys.text(0)[:, :-1]
    for when in ("wrapped", "trained"):
        if when == "trained":
            toys.loss_of(zero, toys.text(0, group.rank, group.size)).backward()
        for name, p in zero.module.named_parameters():
            assert (p.shape, p.numel(), p.dtype) == (p.shape, p.shape.numel(), torch.float64), name
            for use in USES.values():
                with pytest.raises(InputError, match=r"with zero\.gathered\(\)"):
                    use(p)
        for whole in (
            zero.module.state_dict,
            zero.state_dict,
            zero.module.half,
            lambda: copy.deepcopy(zero.module),
            lambda: zero.module(tokens),
            lambda: generate(zero.module, [1, 2], 2),
        ):
            with pytest.raises(InputError, match=r"with zero\.gathered\(\)"):
                whole()
    with pytest.raises(InputError, match="units="):
        Zero3(nn.Linear(2, 2), group)


def test_a_freed_weight_is_a_sentence_however_it_is_used():
    launch(freed, ranks=2)


def context(group):
    """The context changes nothing, but what is written in it; training goes on as if without."""
    out = {}
    for stage in (1, 2, 3):
        zero, optimizer = toys.sharded(group, stage)
        toys.train(group, zero, optimizer, 1)
        with zero.gathered() as model:
            tokens = toys.text(0)[:, :-1]
            with torch.no_grad():
                assert torch.equal(model(tokens), zero(tokens))
            assert len(generate(model, [1, 2], 2)) == 2
            copied = copy.deepcopy(model.state_dict())
            for p in model.parameters():
                p.data.mul_(2)
        doubled = full_state_dict(zero)
        assert all(torch.equal(doubled[name], 2 * copied[name]) for name in copied)
        load_full_state_dict(zero, copied if group.rank == 1 else {}, root=1)
        out[stage] = toys.train(group, zero, optimizer, 2, first=1)
    return out


def test_the_context_and_what_is_written_in_it():
    model = toys.toy()
    optimizer = toys.ADAMW(toys.parameter_groups(model, 0.1))
    toys.one_process(1, model=model, optimizer=optimizer)
    want = toys.one_process(2, 1, model, optimizer)
    for results in launch(context, ranks=3, timeout=60):
        for got in results.values():
            toys.assert_follows(got, want)


def whole(group):
    out = {}
    for stage in (1, 2, 3):
        zero = toys.wrap(toys.toy(), group, stage)
        toys.loss_of(zero, toys.text(0, group.rank, group.size)).backward()
        out[stage] = full_gradients(zero), full_state_dict(zero, root=0)
        with pytest.raises(InputError, match="are missing"):
            load_full_state_dict(zero, {})
        with pytest.raises(InputError, match="are not the model's"):
            load_full_state_dict(zero, {**full_state_dict(zero), "other": torch.ones(1)})
        with pytest.raises(InputError, match="have another shape"):
            load_full_state_dict(zero, {name: t[:1] for name, t in full_state_dict(zero).items()})
    return out


def test_gradients_and_state_come_together():
    want, weights = toys.one_process(1)["gradients"], toys.toy().state_dict()
    results = launch(whole, ranks=3, timeout=60)
    for rank, stages in enumerate(results):
        for gradients, state in stages.values():
            assert set(gradients) == set(want)
            for name, gradient in gradients.items():
                torch.testing.assert_close(gradient, want[name], rtol=1e-10, atol=1e-12)
            assert set(state) == (set(weights) if rank == 0 else set())
            assert all(torch.equal(tensor, weights[name]) for name, tensor in state.items())


def half(group):
    """A model in bfloat16 has float32 shards, which neither context nor loading may round."""
    zero = toys.wrap(toys.toy().bfloat16(), group, 2)
    exact = {name: t + 1e-5 * torch.ones_like(t) for name, t in full_state_dict(zero).items()}
    load_full_state_dict(zero, exact)
    with zero.gathered():
        pass
    assert all(torch.equal(t, exact[name]) for name, t in full_state_dict(zero).items())
    new = {name: torch.full_like(t, 3) for name, t in zero.module.state_dict().items()}
    zero.module.load_state_dict(new)
    assert all((t == 3).all() for t in full_state_dict(zero).values())


def test_float32_shards_are_not_rounded():
    launch(half, ranks=2)


def of_transformers(group, folder):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "tie_word_embeddings": True}
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, **sizes)
    model = LlamaForCausalLM(config)
    want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prompt = torch.tensor([[1, 2, 3]])
    text = model.generate(prompt, max_new_tokens=5, do_sample=False)
    assert blocks_of(model) == list(model.model.layers)
    zero = Zero3(model, group)
    assert len(zero.units) == 3, "two layers and the rest"
    with zero.gathered():
        assert torch.equal(model.generate(prompt, max_new_tokens=5, do_sample=False), text)
        if group.rank == 0:
            model.save_pretrained(folder)
    assert all(unit.full.untyped_storage().nbytes() == 0 for unit in zero.units)
    group.barrier()
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert all(torch.equal(t, want[name]) for name, t in again.state_dict().items())


def test_generate_and_save_pretrained(tmp_path):
    launch(of_transformers, str(tmp_path), ranks=2, timeout=60)


def test_units_are_found_in_the_outermost_lists():
    inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.ModuleDict({"experts": inner})])
    model = nn.ModuleDict({"layers": layers, "head": nn.Sequential(nn.Linear(2, 2))})
    assert blocks_of(model) == list(layers)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2)))
    assert blocks_of(model) == [model[0], model[2]]


# ---- labs/LIBRARY.md: a Llama of transformers in each stage and under FSDP2, to the last bit ----


LIBRARY = Path(__file__).parents[4] / "labs" / "LIBRARY.md"


def scripts() -> list[str]:
    """Ours, and FSDP2's."""
    return re.findall(r"```python\n(.*?)```", LIBRARY.read_text(), flags=re.DOTALL)


def run(group, ours: str, fsdp2: str) -> dict:
    names: dict = {"__name__": "script"}
    exec(ours, names)
    exec(fsdp2, names)
    results = {stage: names["train"](stage) for stage in (1, 2, 3)}
    torch.manual_seed(0)
    results["FSDP2"] = names["train_fsdp2"](names["LlamaForCausalLM"](names["CONFIG"]))
    return results


def test_each_stage_equals_fsdp2_bit_for_bit():
    for results in launch(run, *scripts(), ranks=2, timeout=120):
        want_losses, want_weights = results.pop("FSDP2")
        assert min(norm for _, norm in want_losses) > 0.5, "every step is clipped"
        for stage, (losses, weights) in results.items():
            assert losses == want_losses, f"stage {stage}"
            assert set(weights) == set(want_weights)
            for name, weight in weights.items():
                assert torch.equal(weight, want_weights[name]), f"stage {stage}: {name}"


@pytest.mark.full
def test_the_script_runs_under_torchrun(tmp_path):
    script = tmp_path / "shard_llama.py"
    script.write_text(scripts()[0])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, str(script), "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(") == 2 * 10, "a loss and a norm a step, on both ranks"
