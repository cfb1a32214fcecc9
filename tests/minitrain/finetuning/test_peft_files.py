"""Files cross both ways: what PEFT writes, ours computes, and the other way round."""

from __future__ import annotations

import json

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from minitrain.errors import InputError
from minitrain.finetuning.adapt import adapt, adaptation_of
from minitrain.finetuning.peft_files import CONFIG as CONFIG_FILE
from minitrain.finetuning.peft_files import WEIGHTS, adapter_tensors, load_adapter, save_adapter
from minitrain.model.hub.load import load_pretrained
from minitrain.model.transformer import build

from ..model.peers import CLASSES
from .peft_peers import CONFIG, OPTIONS, adapted_pair, batch, logits_of, same_model

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
METHODS = list(OPTIONS)
OURS_ALONE = ("houlsby", "parallel", "bitfit")


def shake(model):
    """Every number of the adapter moves: at its start, an adapter that is lost is not missed."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def bare(folder):
    return load_pretrained(folder / "base")[0]


@pytest.mark.parametrize("method", METHODS)
def test_peft_reads_ours_and_ours_reads_pefts(method, tmp_path):
    ours, peer = same_model(tmp_path)
    theirs = adapted_pair(method, ours, peer)
    tokens, before = batch(0), bare(tmp_path)(batch(0))

    shake(ours)
    save_adapter(ours, tmp_path / "ours", base="tiny")
    again = CLASSES["llama"][1].from_pretrained(tmp_path / "base")
    read = peft.PeftModel.from_pretrained(again, tmp_path / "ours")
    torch.testing.assert_close(logits_of(read, tokens), ours(tokens), **CLOSE)
    assert (ours(tokens) - before).abs().max() > 1e-2

    if method == "pissa":  # PEFT changes the model under it, and its file fits only that one
        theirs.save_pretrained(tmp_path / "theirs")
        with pytest.raises(InputError, match="path_initial_model_for_weight_conversion"):
            load_adapter(bare(tmp_path), tmp_path / "theirs")
        return
    shake(theirs).save_pretrained(tmp_path / "theirs")
    loaded = load_adapter(bare(tmp_path), tmp_path / "theirs")
    torch.testing.assert_close(loaded(tokens), logits_of(theirs.eval(), tokens), **CLOSE)
    assert not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("method", [*METHODS, *OURS_ALONE])
def test_there_and_back_is_the_same_model(method, tmp_path):
    model = shake(adapt(build(CONFIG, seed=1), method, **OPTIONS.get(method, {})))
    save_adapter(model, tmp_path)
    back = load_adapter(build(CONFIG, seed=1), tmp_path, trainable=True)
    exact = method not in ("pissa", "prefix")  # which are written otherwise than they are kept
    torch.testing.assert_close(back(batch(0)), model(batch(0)), rtol=0, atol=0 if exact else 1e-5)
    assert any(p.requires_grad for p in back.parameters())
    assert {p.name for p in tmp_path.iterdir()} == {CONFIG_FILE, WEIGHTS}


def test_an_adapted_embedding_crosses_too(tmp_path):
    ours, peer = same_model(tmp_path)
    config = peft.LoraConfig(r=3, target_modules=["embed_tokens", "q_proj"], task_type="CAUSAL_LM")
    theirs = shake(peft.get_peft_model(peer, config))
    theirs.save_pretrained(tmp_path / "theirs")
    load_adapter(ours, tmp_path / "theirs")
    torch.testing.assert_close(ours(batch(0)), logits_of(theirs, batch(0)), **CLOSE)


def test_layers_by_their_whole_paths(tmp_path):
    ours, _ = same_model(tmp_path)
    shake(adapt(ours, "lora", rank=2, targets="blocks.1.attention.q, mlp.down"))
    save_adapter(ours, tmp_path / "ours")
    names = json.loads((tmp_path / "ours" / CONFIG_FILE).read_text())["target_modules"]
    assert "model.layers.1.self_attn.q_proj" in names and "q_proj" not in names
    again = CLASSES["llama"][1].from_pretrained(tmp_path / "base")
    read = peft.PeftModel.from_pretrained(again, tmp_path / "ours")
    torch.testing.assert_close(logits_of(read, batch(0)), ours(batch(0)), **CLOSE)


@pytest.fixture
def saved(tmp_path):
    save_adapter(adapt(build(CONFIG), "lora", targets="q,v"), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "change, words",
    [
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "shape"),
        ({"alpha_pattern": {"q_prog": 2}}, "q_prog"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"init_lora_weights": "pissa"}, "changes the model under it"),
        ({"r": 4}, "shape"),
        ({"use_dora": True}, "only in one of them"),
    ],
)
def test_what_is_not_done_is_refused_and_the_model_left_alone(saved, change, words):
    path = saved / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    model = build(CONFIG)
    before = model(batch(0))
    with pytest.raises(InputError, match=words):
        load_adapter(model, saved)
    assert adaptation_of(model) is None and torch.equal(model(batch(0)), before)


def test_files_that_do_not_fit_or_are_not_there(saved, tmp_path):
    tensors = load_file(saved / WEIGHTS)
    name = next(iter(tensors))
    save_file(
        {**tensors, name.replace("layers.0", "layers.9"): tensors[name].clone()}, saved / WEIGHTS
    )
    with pytest.raises(InputError, match=r"layers\.9"):
        load_adapter(build(CONFIG), saved)
    save_file({n: t for n, t in tensors.items() if n != name}, saved / WEIGHTS)
    with pytest.raises(InputError, match="only in one"):
        load_adapter(build(CONFIG), saved)
    (saved / WEIGHTS).write_bytes(b"no")
    with pytest.raises(InputError, match="damaged"):
        load_adapter(build(CONFIG), saved)
    (saved / WEIGHTS).unlink()
    with pytest.raises(InputError, match="has no adapter_model"):
        load_adapter(build(CONFIG), saved)
    with pytest.raises(InputError, match="holds no adapter_config"):
        load_adapter(build(CONFIG), saved / "nowhere")
    with pytest.raises(InputError, match="no adapter to save"):
        save_adapter(build(CONFIG), saved)
    with pytest.raises(InputError, match="save_pretrained"):
        save_adapter(adapt(build(CONFIG), "full"), saved)


def test_names_are_pefts_own(tmp_path):
    ours, peer = same_model(tmp_path)
    theirs = adapted_pair("dora", ours, peer)
    assert set(adapter_tensors(ours)) == set(peft.get_peft_model_state_dict(theirs))
