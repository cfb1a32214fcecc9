"""Speculative decoding at batch 1, greedy: against transformers' own, and against no drafts.

stories15M generates a story, and repeats an earlier one; if it is not cached, a model of random
weights stands in. Before timing, both must generate the same tokens. The name "without drafts"
includes the ratio expected by the formula, from the acceptance on the target's own greedy text and
from measured costs (`speculation/length.py`). Last: in the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import nn

import minitrain
from minitrain.bench.case import OURS, PEER, Case, peer_module
from minitrain.bench.serving import BLOCK
from minitrain.bench.training import as_llama
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate_cached
from minitrain.inference.speculation.draft_model import DraftModel, first_layers, quantized_draft
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.length import measure_acceptance, measure_costs, speed_up
from minitrain.inference.speculation.lessons import Course, frequent, own_text, train
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.proposer import Proposer
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine, speculate
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import preset
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import Transformer, build

LENGTH = {"n-grams": 4}  # for drafts that cost nothing; 2 for others
BATCH = 8  # sequences in the engine
LESSONS = (384, 160, 300)  # for EAGLE: sequences, tokens in each, and steps: about a minute
WITHOUT = f"minitrain {minitrain.__version__} without drafts"
GREEDY = SamplingParameters()
COST_REASON = (
    "the draft reads too much for what is kept of it: its norms, its head and Python's own time do "
    "not shrink with its bits or layers, and a pass over several tokens costs a CPU more than one"
)
BATCH_REASON = (
    "the pass of a batch is bound by its products and no longer by reading weights, so that every "
    "guess costs nearly a token's time, kept or not"
)
FEW_REASON = "a new story hardly repeats itself, and a draft that is dropped was read for nothing"
PEER_REASON = "both read the same tokens in as many passes: what is left is each one's own loop"

DRAFTS: dict[str, Callable[[Transformer], Transformer]] = {
    "int8": lambda target: quantized_draft(target, "int8"),
    "int4-g32": lambda target: quantized_draft(target, "int4-g32"),
    "one layer fewer": lambda target: first_layers(target, target.config.layers - 1),
}


def cases(
    repeats: int = 5,
    tokens: int = 96,
    model: str | None = None,
    lessons: tuple[int, int, int] = LESSONS,
) -> list[Case]:
    """`model`: stories15M, or a preset's name; None: whichever is available."""
    name = model or ("stories15M" if is_cached("stories15M") else "10M")
    theirs = f"transformers {peer_module('speculation', 'transformers').__version__}"
    own, lookup = partial(_without, name, tokens, repeats), partial(_lookup, name, tokens, repeats)
    title = f"{name}, {tokens} tokens, "
    return [
        *(
            Case(
                f"{title}{draft} draft (formula {_expected(name, tokens, draft):.2f})",
                WITHOUT,
                partial(own, draft),
                COST_REASON,
            )
            for draft in DRAFTS
        ),
        Case(
            f"{title}EAGLE, {lessons[2]} steps on its own text",
            WITHOUT,
            partial(_eagle, name, tokens, repeats, lessons),
            COST_REASON,
        ),
        Case(f"{title}n-grams", WITHOUT, partial(own, "n-grams"), FEW_REASON),
        Case(
            f"{title}n-grams, told again", WITHOUT, partial(own, "n-grams", again=True), FEW_REASON
        ),
        Case(
            f"{title}one layer fewer draft",
            f"assistant_model of {theirs}",
            partial(_assistant, name, tokens, repeats),
            PEER_REASON,
        ),
        *(
            Case(
                f"{title}n-grams{', told again' if again else ''}",
                f"prompt_lookup_num_tokens of {theirs}",
                partial(lookup, again),
                PEER_REASON,
            )
            for again in (False, True)
        ),
        *(
            Case(
                f"{title}{draft}, {BATCH} texts in the engine",
                f"{WITHOUT}, in the engine",
                partial(_in_engine, name, tokens, repeats, draft, again),
                BATCH_REASON,
            )
            for draft, again in (("int8", False), ("n-grams", True))
        ),
    ]


@lru_cache
def _story(name: str, tokens: int, again: bool = False) -> tuple[Transformer, list[int], list[int]]:
    """Model, prompt, and its output without drafts."""
    if name == "stories15M":
        model, tokenizer = load_llama2c(fetch("stories15M"))
        prompt = tokenizer.encode("Once upon a time")
    else:
        model, prompt = build(preset(name)), [1, 2, 3]
    model.requires_grad_(False)
    told = generate_cached(model, prompt, tokens, temperature=0)
    if again:
        prompt = [*prompt, *told, *prompt, *told[:8]]
        told = generate_cached(model, prompt, tokens, temperature=0)
    return model, prompt, told


@lru_cache
def _proposer(name: str, tokens: int, draft: str) -> Proposer:
    if draft == "n-grams":
        return NGram()
    return DraftModel(DRAFTS[draft](_story(name, tokens)[0]))


def _expected(name: str, tokens: int, draft: str) -> float:
    """The ratio of seconds to those without drafts, by the formula."""
    target, prompt, told = _story(name, tokens)
    proposer = _proposer(name, tokens, draft)
    kept = measure_acceptance(target, proposer.model, torch.tensor([[*prompt, *told]]), GREEDY)
    length = LENGTH.get(draft, 2)
    costs = measure_costs(target, proposer, [*prompt, *told], length)
    acceptance = float(kept[0, len(prompt) - 1 : -1].mean())
    return 1 / speed_up(acceptance, length, costs.draft, costs.passes[length])


def _eagle(name: str, tokens: int, repeats: int, lessons: tuple[int, int, int]) -> Comparison:
    """Trains the EAGLE head first, untimed."""
    (target, prompt, told), (texts, length, steps) = _story(name, tokens), lessons
    heard = own_text(target, prompt[:1], texts, length, generator=torch.Generator().manual_seed(0))
    layer = EagleLayer(target, frequent(heard.tokens, 1500))
    train(layer, heard, Course(steps, texts=8, lr=4e-3))
    peer = partial(generate_cached, target, prompt, tokens, temperature=0)
    return _measured(target, prompt, told, Eagle(layer), 2, peer, repeats)


def _measured(
    target: Transformer,
    prompt: list[int],
    told: list[int],
    proposer: Proposer,
    length: int,
    peer: Callable[[], list[int]],
    repeats: int,
) -> Comparison:
    parameters = SamplingParameters(len(told))

    def ours() -> list[int]:
        return speculate(target, proposer, [prompt], parameters, length)[0].tokens

    assert ours() == peer() == told, "drafts, and the peer, must change no token"
    return compare({OURS: ours, PEER: peer}, repeats, warmup=1)


def _beside(
    name: str, tokens: int, draft: str, again: bool, peer: Callable[[], list[int]], repeats: int
) -> Comparison:
    proposer, length = _proposer(name, tokens, draft), LENGTH.get(draft, 2)
    return _measured(*_story(name, tokens, again), proposer, length, peer, repeats)


def _without(name: str, tokens: int, repeats: int, draft: str, again: bool = False) -> Comparison:
    target, prompt, _ = _story(name, tokens, again)
    peer = partial(generate_cached, target, prompt, tokens, temperature=0)
    return _beside(name, tokens, draft, again, peer, repeats)


def _in_engine(name: str, tokens: int, repeats: int, draft: str, again: bool) -> Comparison:
    """Runs sequences at successive positions in one story."""
    target, prompt, told = _story(name, tokens, again)
    prompts = [[*prompt, *told[:further]] for further in range(BATCH)]
    blocks = BATCH * (len(prompt) + BATCH + tokens) // BLOCK + BATCH
    proposer = _proposer(name, tokens, draft)
    if isinstance(proposer, DraftModel):
        proposer = DraftModel(proposer.model, rows=BATCH)

    def answers(make: Callable[..., Engine]) -> list[list[int]]:
        engine = make(target, blocks, BLOCK, share_prefixes=False)
        found = engine.generate(prompts, SamplingParameters(tokens - BATCH))
        return [answer.tokens for answer in found]

    def ours() -> list[list[int]]:
        drafts = EngineDrafts(proposer, LENGTH.get(draft, 2))
        return answers(partial(SpeculativeEngine, proposer=drafts))

    peer = partial(answers, Engine)
    assert ours() == peer(), "drafts must change no token"
    return compare({OURS: ours, PEER: peer}, repeats, warmup=1)


def _assistant(name: str, tokens: int, repeats: int) -> Comparison:
    """Uses the same draft model and length on both sides."""
    draft = "one layer fewer"
    assistant = as_llama(_proposer(name, tokens, draft).model).eval()
    assistant.generation_config.num_assistant_tokens = LENGTH.get(draft, 2)
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    peer = _peer(name, tokens, False, assistant_model=assistant)
    return _beside(name, tokens, draft, False, peer, repeats)


def _lookup(name: str, tokens: int, repeats: int, again: bool) -> Comparison:
    peer = _peer(name, tokens, again, prompt_lookup_num_tokens=LENGTH["n-grams"])
    return _beside(name, tokens, "n-grams", again, peer, repeats)


def _peer(name: str, tokens: int, again: bool, **how: int | nn.Module) -> Callable[[], list[int]]:
    target, prompt, _ = _story(name, tokens, again)
    llama, read = as_llama(target).eval(), torch.tensor([prompt])

    def generate() -> list[int]:
        out = llama.generate(
            read,
            attention_mask=torch.ones_like(read),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **how,
        )
        return out[0, len(prompt) :].tolist()

    return generate
