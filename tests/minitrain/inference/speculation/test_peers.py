"""The same tokens as transformers' assisted generation; every draft that `serve --draft` names."""

from __future__ import annotations

import pytest
import torch

from minitrain.apps.serve.command import open_drafts
from minitrain.bench.training import as_llama
from minitrain.errors import InputError
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation import named
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.eagle import Eagle
from minitrain.inference.speculation.length import AdaptiveLength
from minitrain.inference.speculation.lessons import Course
from minitrain.inference.speculation.medusa import Medusa
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.serving import SpeculativeEngine, speculate
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import save_pretrained
from minitrain.model.transformer import build

from ...model.peers import exact
from ..engine.traffic import prompts
from .test_serving import TARGET, distorted

PROMPTS, LATER = [[3, 1, 4], [15], [9, 2, 6, 5, 3, 5]], SamplingParameters(max_new_tokens=16)


@pytest.mark.parametrize("how", ["assistant", "lookup"])
def test_transformers_writes_the_same_with_its_own_drafts(how):
    target, assistant = (exact(as_llama(m).double()).eval() for m in (TARGET, distorted(2, 0.2)))
    options = (
        {"assistant_model": assistant} if how == "assistant" else {"prompt_lookup_num_tokens": 4}
    )
    proposer = DraftModel(distorted(2, 0.2)) if how == "assistant" else NGram()
    for prompt in PROMPTS:
        theirs = target.generate(
            torch.tensor([prompt]),
            max_new_tokens=LATER.max_new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        (ours,) = speculate(TARGET, proposer, [prompt], LATER)
        assert [*prompt, *ours.tokens] == theirs[0].tolist()


# Every draft that `serve --draft` names, made of a small model, and served


CONFIG = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=64, max_length=128)
KINDS = {
    "ngram": NGram,
    "int8": DraftModel,
    "layers-1": DraftModel,
    "medusa": Medusa,
    "eagle": Eagle,
}


@pytest.fixture(scope="module")
def target():
    return build(CONFIG, seed=1)


@pytest.fixture(autouse=True)
def short_lessons(monkeypatch, tmp_path):
    short = named.Teaching(12, 24, 61, course=Course(steps=4, texts=4))
    monkeypatch.setattr(named, "Teaching", lambda: short)
    monkeypatch.setattr(named, "cache_dir", lambda: tmp_path)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", [3, None])
def test_every_named_draft_is_served(name, length, target):
    drafts = open_drafts(name, target, (1,), rows=4, length=length)
    assert isinstance(drafts.proposer, KINDS[name])
    assert name != "eagle" or drafts.proposer.cache.keys.shape[1] == 4, "a row for each request"
    assert length is not None or isinstance(drafts.length, AdaptiveLength)
    asked = SamplingParameters(10)
    found = SpeculativeEngine(target, 60, 4, proposer=drafts).generate(prompts(3), asked)
    wanted = Engine(target, 60, 4).generate(prompts(3), asked)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]


def test_a_model_of_the_same_tokenizer_is_a_draft_too(target, tmp_path):
    save_pretrained(build(CONFIG, seed=2), tmp_path / "draft")
    drafts = open_drafts(str(tmp_path / "draft"), target, (1,), rows=2, length=2)
    assert isinstance(drafts.proposer, DraftModel)
    other = ModelConfig(67, 32, 2, heads=4, kv_heads=2, ffn_size=64, max_length=128)
    save_pretrained(build(other), tmp_path / "other")
    with pytest.raises(InputError, match="a vocabulary of 67 tokens and the model one of 61"):
        open_drafts(str(tmp_path / "other"), target, (1,), rows=2)


def test_what_is_no_draft_is_named(target):
    for name, message in (
        ("layers-3", "draft with 1 to 1 of them, not 3"),
        ("medussa", "no model 'medussa' here"),
    ):
        with pytest.raises(InputError, match=message):
            open_drafts(name, target, (1,), rows=2)


@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_a_head_is_taught_once_for_a_target(name, target, tmp_path, monkeypatch):
    """What is found is what was taught; another target, or a file cut short, is taught anew, and by
    the same seeds."""
    taughts = []
    train = named.train
    monkeypatch.setattr(named, "train", lambda *a: taughts.append(name) or train(*a))

    def opened():
        proposer = open_drafts(name, target, (1,), 2, length=2).proposer
        return proposer, vars(proposer).get("heads", vars(proposer).get("layer")).state_dict()

    heads, (first, second) = zip(opened(), opened())
    assert all(torch.equal(first[key], second[key]) for key in first) and len(taughts) == 1
    assert getattr(heads[0], "branches", 0) == getattr(heads[1], "branches", 0)
    (file,) = (tmp_path / "drafts").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    _, again = opened()
    assert all(torch.equal(first[key], again[key]) for key in first)
    open_drafts(name, build(CONFIG, seed=3), (1,), 2, length=2)
    open_drafts(name, target, (2,), 2, length=2)
    assert len(taughts) == 4 and len([*file.parent.iterdir()]) == 3
