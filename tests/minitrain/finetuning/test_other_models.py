"""Models of transformers, whose layers are called, named and built otherwise; PEFT is the oracle."""

from __future__ import annotations

import copy
import warnings

import peft
import pytest
import torch
import transformers as hf
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.layer import adapted_layers
from minitrain.finetuning.merging import disabled, merge, merge_and_unload, unload, unmerge
from minitrain.finetuning.model import adapt, trainable_parameters
from minitrain.finetuning.peft_files import adapter_tensors, load_adapter, save_adapter
from minitrain.quantization.formats.names import named
from minitrain.quantization.model import quantize_model

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDTH = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDTH["max_position_embeddings"] = 64
SIZES = {**WIDTH, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, **ENDS}


def tiny(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, tie_word_embeddings=True)),
        "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**SIZES)),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, **ENDS)
        ),
        "opt": lambda: hf.OPTForCausalLM(
            hf.OPTConfig(**WIDTH, ffn_dim=48, word_embed_proj_dim=32, **ENDS)
        ),
        "bert": lambda: hf.BertForSequenceClassification(
            hf.BertConfig(**WIDTH, intermediate_size=48)
        ),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                decoder_start_token_id=0, **{**ENDS, "bos_token_id": None},
            )
        ),
    }[kind]()  # fmt: skip
    return model.eval()


def inputs(kind: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    tokens = torch.randint(3, 64, (2, 9))
    more = {"decoder_input_ids": tokens[:, :5]} if kind == "t5" else {}
    return {"input_ids": tokens, **more}


TARGETS = {  # some of PEFT's own defaults, and what is out of the way
    "llama": ("q_proj", "down_proj"),
    "qwen3": ("q_proj", "v_proj", "lm_head"),
    "gemma3": ("embed_tokens", "o_proj"),
    "mixtral": ("k_proj", "o_proj"),
    "gpt2": ("c_attn", "c_proj", "wte"),
    "opt": ("out_proj", "fc2"),
    "bert": ("query", "dense"),
    "t5": ("q", "v", "wo", "wi"),
}


def pair(kind: str, config: peft.PeftConfig, method: str = "lora", **options):
    """Ours and PEFT's, of one model, with the numbers that PEFT has drawn, and moved."""
    ours, base = tiny(kind), tiny(kind)
    torch.manual_seed(1)
    theirs = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    adapt(ours, method, example=inputs(kind), **options)
    stored = peft.get_peft_model_state_dict(theirs, save_embedding_layers=False)
    own = adapter_tensors(ours)
    assert {n: t.shape for n, t in own.items()} == {n: t.shape for n, t in stored.items()}
    assert trainable_parameters(ours)[0] == theirs.get_nb_trainable_parameters()[0]
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])
    return ours, theirs


@torch.no_grad()
def logits(model: nn.Module, kind: str) -> torch.Tensor:
    return model(**inputs(kind)).logits


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("which", ["some", "all-linear"])
def test_the_same_adapter_gives_the_same_logits(kind, which, tmp_path):
    targets = TARGETS[kind] if which == "some" else "all-linear"
    named = list(targets) if which == "some" else targets
    if which == "all-linear" and kind == "mixtral":  # to which PEFT adds the experts' parameters
        named = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=named)
    ours, theirs = pair(kind, config, rank=3, alpha=5, targets=targets)
    want = logits(theirs, kind)
    torch.testing.assert_close(logits(ours, kind), want, **CLOSE)
    assert (want - logits(tiny(kind), kind)).abs().max() > 1e-3

    save_adapter(ours, tmp_path)
    read = peft.PeftModel.from_pretrained(tiny(kind), tmp_path).eval()
    torch.testing.assert_close(logits(read, kind), want, **CLOSE)
    theirs.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    again = load_adapter(tiny(kind), tmp_path / "theirs")
    torch.testing.assert_close(logits(again, kind), want, **CLOSE)

    with disabled(ours):
        assert torch.equal(logits(ours, kind), logits(tiny(kind), kind))
    merge(ours)
    torch.testing.assert_close(logits(ours, kind), want, **CLOSE)
    unmerge(ours)
    plain = merge_and_unload(ours)
    torch.testing.assert_close(logits(plain, kind), want, **CLOSE)
    plain.save_pretrained(tmp_path / "plain")
    back = type(plain).from_pretrained(tmp_path / "plain")
    torch.testing.assert_close(logits(back, kind), want, **CLOSE)


LORA = {"r": 3, "lora_alpha": 5}
OURS = {"rank": 3, "alpha": 5}
LLAMA_PATTERNS = {
    "rank_pattern": {"q_proj": 5, "layers.1.self_attn.v_proj": 2},
    "alpha_pattern": {r".*\.1\.mlp\.down_proj": 9, "q_proj": 7},
}
GPT2_PATTERNS = {"rank_pattern": {"attn.c_proj": 5}, "alpha_pattern": {"c_attn": 1}}


WHOLE = "modules_to_save"


@pytest.mark.parametrize(
    "kind, method, targets, more",
    [
        ("llama", "lora", ("q_proj", "v_proj", "down_proj"), LLAMA_PATTERNS),
        ("gpt2", "lora", ("c_attn", "c_proj"), GPT2_PATTERNS),
        ("bert", "lora", ("query",), {WHOLE: ["pooler", "classifier"]}),
        ("gpt2", "lora", ("c_attn",), {WHOLE: ["lm_head"]}),
        ("qwen3", "lora", ("q_proj",), {WHOLE: ["lm_head"]}),  # tied
        ("llama", "lora", ("q_proj",), {WHOLE: ["embed_tokens", "model.norm"]}),
        ("gpt2", "dora", ("c_attn", "c_proj"), {}),
        ("t5", "dora", ("q", "wo"), {}),
        ("llama", "ia3", ("k_proj", "v_proj", "down_proj"), {"inputs": ("down_proj",)}),
        ("t5", "ia3", ("k", "v", "wi"), {"inputs": ("wi",)}),
        ("gpt2", "ia3", ("c_attn", "mlp.c_proj"), {"inputs": ("mlp.c_proj",)}),
    ],
)
def test_settings_cross_both_ways(kind, method, targets, more, tmp_path):
    """Ours computes as PEFT's, each reads the other's files, and merged it is the same."""
    if method == "ia3":
        config = peft.IA3Config(target_modules=targets, feedforward_modules=more["inputs"])
        ours, theirs = pair(kind, config, "ia3", targets=targets, **more)
    else:
        names = {"target_modules": list(targets), "use_dora": method == "dora"}
        config = peft.LoraConfig(**LORA, **names, **more)
        ours, theirs = pair(kind, config, method, targets=targets, **OURS, **more)
    want = logits(theirs, kind)
    torch.testing.assert_close(logits(ours, kind), want, **CLOSE)
    save_adapter(ours, tmp_path / "ours")
    read = peft.PeftModel.from_pretrained(tiny(kind), tmp_path / "ours").eval()
    torch.testing.assert_close(logits(read, kind), want, **CLOSE)
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_adapter(tiny(kind), tmp_path / "theirs")
    torch.testing.assert_close(logits(again, kind), want, **CLOSE)
    merge(ours)
    torch.testing.assert_close(logits(ours, kind), want, **CLOSE)


def test_what_would_be_lost_or_passed_over_is_said(tmp_path):
    model = adapt(tiny("bert"), "lora", targets="query")
    model.classifier.requires_grad_(True)
    with pytest.raises(InputError, match=r"classifier\.weight is trained .*modules_to_save"):
        save_adapter(model, tmp_path)
    for kind, method, options, words in (
        ("llama", "lora", {"targets": "q", "rank_pattern": {"kproj": 2}}, "'kproj' fits no layer"),
        ("llama", "lora", {"targets": "q", "rank_pattern": {"(q": 2}}, "no regular expression"),
        ("llama", "lora", {"targets": "lm_head", "modules_to_save": "lm_head"}, "name it in one"),
        ("gpt2", "ia3", {"targets": "c_attn", "inputs": "c_proj"}, "scaled inputs"),
        ("opt", "lora", {"targets": "embed_positions"}, "a way of its own"),
    ):
        with pytest.raises(InputError, match=words):
            adapt(tiny(kind), method, **options)
    part = tiny("t5")
    adapt(part.encoder, "lora", targets="q")
    with pytest.raises(InputError, match="or a part of it"):
        adapt(part, "lora", targets="q")
    with pytest.raises(InputError, match=r"LlamaForCausalLM: model\.save_pretrained"):
        quantize_model(tiny("llama"), named("int4-g16"))


def test_named_arguments_and_attributes_are_the_layers_own():
    model = adapt(nn.Sequential(nn.Linear(4, 3)), "lora", targets="0", rank=2)
    x, layer = torch.randn(2, 4), model[0]
    assert torch.equal(layer(input=x), layer(x))
    assert layer.weight is layer.base_layer.weight and layer.bias is layer.base_layer.bias
    assert (layer.in_features, layer.out_features) == (4, 3)
    with pytest.raises(AttributeError, match="nothing"):
        _ = layer.nothing
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    assert torch.equal(unload(twin)(x), model[0].base_layer(x))


@pytest.mark.parametrize("kind", ["llama", "t5", "gemma3", "mixtral"])
def test_generation_warns_of_nothing_and_merges(kind):
    torch.manual_seed(0)
    model, tokens = adapt(tiny(kind), "lora", targets="all-linear", rank=2), inputs(kind)
    for layer in adapted_layers(model).values():
        nn.init.normal_(layer.adapter.lora_B, std=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made = model.generate(tokens["input_ids"], max_new_tokens=5, do_sample=False)
    merge_and_unload(model)
    again = model.generate(tokens["input_ids"], max_new_tokens=5, do_sample=False)
    assert torch.equal(made, again)


class Own(nn.Module):
    """Layers at the top, as in no model of the hub; a list of parameters; a table of norm 1."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.q = nn.Embedding(9, 8, max_norm=1.0), nn.Linear(8, 12)
        self.down, self.shifts = nn.Linear(12, 8), nn.ParameterList([nn.Parameter(torch.ones(8))])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.down(self.q(self.table(tokens))) + self.shifts[0]


def test_ia3_crosses_files_where_a_layer_has_our_name_at_the_top(tmp_path):
    torch.manual_seed(0)
    model, tokens = Own(), torch.arange(9)
    bare = copy.deepcopy(model)
    adapt(model, "ia3", targets=("q", "down"), inputs=("down",))
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter)
    save_adapter(model, tmp_path)
    assert torch.equal(load_adapter(bare, tmp_path)(tokens), model(tokens))


def test_what_no_layer_can_stand_in_for_is_refused():
    with pytest.raises(InputError, match="shifts is a ParameterList, which is never called"):
        adapt(Own(), "lora", targets=("q",), modules_to_save=("shifts",))
    model = adapt(Own(), "lora", targets=("table",))
    with pytest.raises(InputError, match="max_norm would shorten the sum"):
        merge(model)
