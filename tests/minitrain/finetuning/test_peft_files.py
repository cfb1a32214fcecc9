"""PEFT is the oracle: the same losses, and files that cross both ways."""

from __future__ import annotations

import json
import re

import peft
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from minitrain.errors import InputError
from minitrain.finetuning.many import AdapterBank, factors_in
from minitrain.finetuning.model import adapt, adaptation_of
from minitrain.finetuning.peft_config import IDLE, NEUTRAL, READ
from minitrain.finetuning.peft_files import CONFIG as CONFIG_FILE
from minitrain.finetuning.peft_files import WEIGHTS, load_adapter, save_adapter
from minitrain.model.hub.load import load_pretrained
from minitrain.model.transformer import build

from ..model.peers import CLASSES
from .peft_peers import CONFIG, OPTIONS, adapted_pair, batch, logits_of, same_model, shaken, train

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
METHODS = list(OPTIONS)
OURS_ALONE = ("houlsby", "parallel", "bitfit")


def bare(folder):
    return load_pretrained(folder / "base")[0]


def loss(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("method", METHODS)
def test_twenty_steps_have_pefts_losses(method, tmp_path):
    ours, peer = same_model(tmp_path)
    theirs = adapted_pair(method, ours, peer)
    found = train(ours, lambda step: loss(ours(batch(step)), batch(step)), 20)
    wanted = train(theirs, lambda step: loss(logits_of(theirs, batch(step)), batch(step)), 20)
    assert found[0] - found[16] > 1e-3, "it must have learned, or the comparison says little"
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_peft_reads_ours_and_ours_reads_pefts(method, tmp_path):
    ours, peer = same_model(tmp_path)
    theirs = adapted_pair(method, ours, peer)
    tokens, before = batch(0), bare(tmp_path)(batch(0))

    shaken(ours)
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
    shaken(theirs).save_pretrained(tmp_path / "theirs")
    loaded = load_adapter(bare(tmp_path), tmp_path / "theirs")
    torch.testing.assert_close(loaded(tokens), logits_of(theirs.eval(), tokens), **CLOSE)
    assert not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("method", [*METHODS, *OURS_ALONE])
def test_there_and_back_is_the_same_model(method, tmp_path):
    model = shaken(adapt(build(CONFIG, seed=1), method, **OPTIONS.get(method, {})))
    save_adapter(model, tmp_path)
    back = load_adapter(build(CONFIG, seed=1), tmp_path, trainable=True)
    exact = method not in ("pissa", "prefix")  # which are written otherwise than they are kept
    torch.testing.assert_close(back(batch(0)), model(batch(0)), rtol=0, atol=0 if exact else 1e-5)
    assert any(p.requires_grad for p in back.parameters())
    assert {p.name for p in tmp_path.iterdir()} == {CONFIG_FILE, WEIGHTS}


def test_an_adapted_embedding_crosses_too(tmp_path):
    ours, peer = same_model(tmp_path)
    config = peft.LoraConfig(r=3, target_modules=["embed_tokens", "q_proj"], task_type="CAUSAL_LM")
    theirs = shaken(peft.get_peft_model(peer, config))
    theirs.save_pretrained(tmp_path / "theirs")
    load_adapter(ours, tmp_path / "theirs")
    torch.testing.assert_close(ours(batch(0)), logits_of(theirs, batch(0)), **CLOSE)


def test_layers_by_their_whole_paths(tmp_path):
    ours, _ = same_model(tmp_path)
    shaken(adapt(ours, "lora", rank=2, targets="blocks.1.attention.q, mlp.down"))
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
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"init_lora_weights": "pissa"}, "changes the model under it"),
        ({"r": 4}, "shape"),
        ({"use_dora": True}, "lacks .*lora_magnitude_vector"),
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


def test_tensors_that_do_not_fit(saved):
    tensors = load_file(saved / WEIGHTS)
    name = next(iter(tensors))
    more = {**tensors, name.replace("layers.0", "layers.9"): tensors[name].clone()}
    less = {n: t for n, t in tensors.items() if n != name}
    for changed, words in ((more, r"layers\.9"), (less, "lacks .*which adapter_config")):
        save_file(changed, saved / WEIGHTS)
        with pytest.raises(InputError, match=words):
            load_adapter(build(CONFIG), saved)


def test_files_that_are_damaged_or_not_there(saved):
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


# What PEFT writes beside an adapter, or under other names ----------------------------------------

HEAD, EMBED = "base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"
LORA = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def pefts(tmp_path, config=None, tensors=None, **settings):
    """Our bare model, PEFT's model, and the folder that PEFT wrote, its tensors and settings
    changed."""
    ours, peer = same_model(tmp_path)
    theirs = shaken(peft.get_peft_model(peer, config or peft.LoraConfig(**LORA)))
    theirs.save_pretrained(tmp_path / "theirs")
    file, path = tmp_path / "theirs" / WEIGHTS, tmp_path / "theirs" / CONFIG_FILE
    if tensors:
        save_file(tensors(load_file(file)), file)
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return ours, theirs, tmp_path / "theirs"


def in_a_bank(model, folder):
    bank = AdapterBank(model, 1e7)
    bank.load("one", folder)
    with bank.rows(["one"] * 3):
        return model(batch(0))


ADDED = {
    "a copy of the head": lambda t, model: t | {HEAD: model.head.weight.detach().clone()},
    "a copy in 16 bits": lambda t, model: t | {EMBED: model.embed.weight.detach().bfloat16()},
    "the adapter's name in its names": lambda t, model: {
        name.replace(".weight", ".default.weight"): tensor for name, tensor in t.items()
    },
}


@pytest.mark.parametrize("change", ADDED.values(), ids=ADDED)
def test_copies_of_the_model_and_an_adapters_name_change_nothing(change, tmp_path):
    model = same_model(tmp_path)[0]
    ours, theirs, folder = pefts(tmp_path, tensors=lambda t: change(t, model))
    want = logits_of(theirs.eval(), batch(0))
    torch.testing.assert_close(load_adapter(ours, folder)(batch(0)), want, **CLOSE)
    torch.testing.assert_close(in_a_bank(bare(tmp_path), folder), want, **CLOSE)


LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
NOT_OURS = {
    "a trained head": (HEAD, (61, 32)),
    "a larger vocabulary": (EMBED, (64, 32)),
    "another embedding": ("base_model.model.model.embed_tokens.base_layer.weight", (61, 32)),
    "a bias of B": (f"{LAYER}.lora_B.bias", (32,)),
    "DoRA's magnitude": (f"{LAYER}.lora_magnitude_vector", (32,)),
    "another adapter's name": (f"{LAYER}.lora_A.sql.weight", (4, 32)),
    "something else": ("base_model.model.classifier.weight", (2, 32)),
}


@pytest.mark.parametrize("name, shape", NOT_OURS.values(), ids=NOT_OURS)
def test_a_tensor_without_a_place_is_refused_by_its_own_name(name, shape, tmp_path):
    added = {name: 2 * torch.ones(shape)}
    ours, _, folder = pefts(tmp_path, tensors=lambda tensors: tensors | added)
    before = ours(batch(0))
    for read in (load_adapter, in_a_bank):
        with pytest.raises(InputError, match=re.escape(name)) as error:
            read(bare(tmp_path) if read is in_a_bank else ours, folder)
        assert "\n" not in str(error.value)
    assert torch.equal(ours(batch(0)), before)


def test_a_bank_takes_no_half_of_an_adapter(tmp_path):
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    _, _, folder = pefts(tmp_path, tensors=lambda t: {n: x for n, x in t.items() if n != name})
    with pytest.raises(InputError, match=f"lacks {name}"):
        factors_in(folder, bare(tmp_path))
    _, _, folder = pefts(tmp_path, r=2)
    with pytest.raises(InputError, match="of rank 4, and its configuration says 2"):
        factors_in(folder, bare(tmp_path))
    _, _, folder = pefts(tmp_path, tensors=lambda _: {})
    with pytest.raises(InputError, match="holds no adapter"):
        factors_in(folder, bare(tmp_path))


PEFT_CONFIGS = [peft.LoraConfig, peft.IA3Config, peft.LNTuningConfig]
PEFT_CONFIGS += [peft.PrefixTuningConfig, peft.PromptTuningConfig]


@pytest.mark.parametrize("kind", PEFT_CONFIGS)
def test_every_setting_of_peft_is_read_or_idle_or_refused_by_its_name(kind, saved):
    path = saved / CONFIG_FILE
    before = json.loads(path.read_text())
    names = {*kind().to_dict(), *before, *IDLE, "use_something_new"} - {"peft_type"}
    for name in sorted(names - READ):
        path.write_text(json.dumps(before | {name: ["x"]}))
        if name in IDLE:
            load_adapter(build(CONFIG), saved)
            continue
        with pytest.raises(InputError, match=f"sets {name} to "):
            load_adapter(build(CONFIG), saved)
        for neutral in NEUTRAL:
            path.write_text(json.dumps(before | {name: neutral}))
            load_adapter(build(CONFIG), saved)


def test_a_file_without_r_and_alpha_has_pefts_defaults(tmp_path):
    config = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    ours, theirs, folder = pefts(tmp_path, config)
    raw = json.loads((folder / CONFIG_FILE).read_text())
    del raw["r"], raw["lora_alpha"]
    (folder / CONFIG_FILE).write_text(json.dumps(raw))
    want = logits_of(theirs.eval(), batch(0))
    torch.testing.assert_close(load_adapter(ours, folder)(batch(0)), want, **CLOSE)


def test_an_adapter_that_is_loaded_to_be_used_drops_nothing(tmp_path):
    """Dropout stayed on after loading, and each forward gave other logits; a trainable one keeps
    the mode that the model had."""
    ours, _ = same_model(tmp_path)
    save_adapter(shaken(adapt(ours, "lora", dropout=0.5)), tmp_path / "ours")
    loaded = load_adapter(bare(tmp_path).train(), tmp_path / "ours")
    assert torch.equal(loaded(batch(0)), loaded(batch(0)))
    assert load_adapter(bare(tmp_path).train(), tmp_path / "ours", trainable=True).training


def test_a_target_without_tensors_is_named(tmp_path):
    """A file that had lost a layer's tensors was loaded as the adapter of all other layers."""
    ours, _ = same_model(tmp_path)
    save_adapter(shaken(adapt(ours, "lora", targets=("q", "v"))), tmp_path)
    kept = {n: t for n, t in load_file(tmp_path / WEIGHTS).items() if "1.self_attn.q" not in n}
    save_file(kept, tmp_path / WEIGHTS)
    model = bare(tmp_path)
    with pytest.raises(InputError, match=r"no tensors for .*layers\.1\.self_attn\.q_proj"):
        load_adapter(model, tmp_path)
    assert adaptation_of(model) is None
    config = json.loads((tmp_path / CONFIG_FILE).read_text())
    chosen = {"exclude_modules": ["model.layers.1.self_attn.q_proj"]}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config | chosen))
    load_adapter(model, tmp_path)
