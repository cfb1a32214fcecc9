"""The same tokens as transformers' assisted generation; and on a model that tells stories."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from minitrain.bench.training import as_llama
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate_cached
from minitrain.inference.speculation.draft_model import DraftModel, first_layers, quantized_draft
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.length import measure_acceptance
from minitrain.inference.speculation.lessons import own_text
from minitrain.inference.speculation.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.serving import speculate
from minitrain.model.hub.llama2c import load_llama2c

from ...model.peers import exact
from .test_serving import TARGET, distorted

PROMPTS, LATER = [[3, 1, 4], [15], [9, 2, 6, 5, 3, 5]], SamplingParameters(max_new_tokens=16)
needs_stories = pytest.mark.skipif(
    not is_cached("stories15M"), reason="python -m minitrain assets stories15M"
)


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


@lru_cache
def stories():
    model, tokenizer = load_llama2c(fetch("stories15M", progress=False))
    return model.requires_grad_(False), tokenizer.encode("Once upon a time")


def story_proposers():
    target = stories()[0]
    shortlist = torch.arange(0, 32000, 8)
    return {
        "int8": DraftModel(quantized_draft(target, "int8")),
        "int4": DraftModel(quantized_draft(target, "int4-g32")),
        "five of six layers": DraftModel(first_layers(target, 5)),
        "n-gram": NGram(),
        "medusa": Medusa(MedusaHeads(target, shortlist), [(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]),
        "eagle": Eagle(EagleLayer(target, shortlist)),
    }


@needs_stories
def test_a_story_is_the_same_whoever_drafts():
    target, prompt = stories()
    parameters = SamplingParameters(max_new_tokens=16)
    expected = generate_cached(target, prompt, 16, temperature=0)
    for name, proposer in story_proposers().items():
        (ours,) = speculate(target, proposer, [prompt], parameters)
        assert ours.tokens == expected, name


@needs_stories
def test_acceptance_on_stories_is_as_it_was_seen():
    """In fewer bits and in fewer layers; the head in fewer bits too."""
    target, prompt = stories()
    texts = own_text(target, prompt, 2, 48, generator=torch.Generator().manual_seed(0)).tokens
    drafts = {
        "int8": (quantized_draft(target, "int8"), 0.97, 1.0),
        "int4": (quantized_draft(target, "int4-g32"), 0.7, 0.95),
        "five layers": (first_layers(target, 5), 0.4, 0.7),
        "three layers": (first_layers(target, 3), 0.05, 0.3),
    }
    for name, (draft, low, high) in drafts.items():
        found = float(measure_acceptance(target, draft, texts).mean())
        assert low < found <= high, (name, found)
