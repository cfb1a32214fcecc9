"""One workload by every mode of the engine, and by other engines: the same tokens, so one hash.

    for row in every_mode(model, Workload.mixed(32, vocabulary), drafts_of(model, [bos])):
        print(row.hash, row.mode)

What memory, time and guesses do to a request is told beside: a mode in which nobody was preempted
says nothing about preemption. Greedy; in float32 another order of additions may turn a near tie,
so a row of another hash is either a mistake or such a tie: float64 tells which.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from minitrain.bench.serving import BLOCK, Serve, Workload, in_batches
from minitrain.bench.training import as_llama
from minitrain.bench.vllm import Vllm, takes, vllm_version
from minitrain.inference.disaggregated.serving import Pool, serve_apart
from minitrain.inference.engine.engine import Engine
from minitrain.inference.load import Ask
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.plain.given import digest
from minitrain.inference.speculation.draft_model import DraftModel, first_layers, quantized_draft
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.lessons import Course, frequent, own_text, train
from minitrain.inference.speculation.medusa import Medusa, MedusaHeads, best_tree
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.proposer import Proposer
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine
from minitrain.model.transformer import Transformer
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch

AT_ONCE = 4  # requests, where later ones are to find what earlier ones have computed
LESSONS = Course(steps=30, texts=8, lr=4e-3)
CHUNK = 16  # tokens a step at most, where prompts are to be cut


@dataclass(frozen=True)
class Told:
    """`hash` is of all answers; `reused` counts tokens that were found and not computed, `kept`
    guesses that became text."""

    mode: str
    hash: str
    steps: int = 0
    preemptions: int = 0
    reused: int = 0
    kept: int = 0


def every_mode(
    model: Transformer,
    work: Workload,
    drafts: Mapping[str, Proposer] | None = None,
    block: int = BLOCK,
) -> Iterator[Told]:
    """Others' that are installed, those of one process, with each of `drafts`, and of two ranks."""
    for mode, served in others(model).items():
        yield Told(mode, name_of(served(work).answers))
    blocks = work.blocks_of(block) + 1
    few = max(-(-(len(p) + n) // block) for p, n in zip(work.prompts, work.new)) + 1
    engine, tight = (partial(Engine, model, count, block) for count in (blocks, few))
    speculating = partial(SpeculativeEngine, model, blocks, block)
    cut = {"budget": CHUNK, "max_running": AT_ONCE}
    yield by(engine(max_running=1, share_prefixes=False), work, "one after the other")
    yield by(engine(share_prefixes=False), work, "batched")
    yield by(engine(max_running=AT_ONCE), work, "prefixes shared")
    yield by(tight(), work, "preempted")
    yield by(engine(**cut), work, "chunks of random sizes", random.Random(0))
    yield by(tight(**cut), work, "preempted, chunks of random sizes", random.Random(1))
    for name, proposer in (drafts or {}).items():
        yield by(speculating(proposer=EngineDrafts(proposer)), work, f"speculative: {name}")
    yield launch(on_a_rank, model, work, blocks, block, ranks=2, timeout=600)[0]
    yield apart(model, work, Pool(blocks, block))


def drafts_of(
    target: Transformer, begin: Sequence[int], rows: int = 32, lessons: Course = LESSONS
) -> dict[str, Proposer]:
    """One of each kind, for `rows` requests; heads learn for some seconds from texts of the
    target's own that begin with `begin`."""
    length, chance = min(64, target.config.max_length), torch.Generator().manual_seed(0)
    heard = own_text(target, begin, 32, length, generator=chance)
    listed = frequent(heard.tokens, 1000)
    heads, layer = MedusaHeads(target, listed), EagleLayer(target, listed)
    for head in (heads, layer):
        train(head, heard, lessons)
    fewer = first_layers(target, target.config.layers - 1)
    return {
        "n-grams": NGram(),
        "itself in int8": DraftModel(quantized_draft(target, "int8"), rows),
        "one layer fewer": DraftModel(fewer, rows),
        "Medusa's heads, a tree": Medusa(heads, best_tree(heads.accuracy(heard), 12)),
        "EAGLE's layer": Eagle(layer, rows),
    }


def others(model: Transformer) -> dict[str, Serve]:
    """`transformers`, and vLLM where `make bench-vllm` has made an environment for it."""
    found: dict[str, Serve] = {}
    if find_spec("transformers"):
        llama = as_llama(model).eval()
        found["transformers, one by one"] = in_batches(llama, 1)
        found["transformers, batches of 8"] = in_batches(llama, 8)
    if vllm_version() is not None and takes(model.config):
        found["vLLM"] = Vllm(model)
    return found


def by(engine: Engine, work: Workload, mode: str, chunks: random.Random | None = None) -> Told:
    """`chunks`: draws the budget of each step, of what leaves everybody a turn."""
    scheduler, told = engine.scheduler, {}
    for prompt, new in zip(work.prompts, work.new):
        told[engine.add(prompt, SamplingParameters(new))] = []
    most = scheduler.budget
    while engine.busy:
        if chunks is not None:
            scheduler.budget = chunks.randint(scheduler.max_running, most)
        for output in engine.step():
            told[output.id].append(output.drawn.token)
    return Told(
        mode,
        name_of(list(told.values())),
        len(engine.steps),
        sum(step.preemptions for step in engine.steps),
        scheduler.blocks.hit,
        sum(step.kept for step in engine.steps),
    )


def on_a_rank(group: Group, model: Transformer, work: Workload, blocks: int, block: int) -> Told:
    engine = Engine(tensor_parallel(model, group), blocks, block, group=group)
    return by(engine, work, f"tensor-parallel on {group.size} ranks")


def apart(model: Transformer, work: Workload, pool: Pool) -> Told:
    """All ask at once, so that the second rank decodes while the first still reads prompts."""
    asks = [Ask(0.0, tuple(prompt), new) for prompt, new in zip(work.prompts, work.new)]
    served = serve_apart(model, asks, pool=pool, timeout=600)
    return Told("prefill and decode apart, on 2 ranks", name_of(served.answers))


def name_of(answers: Sequence[Sequence[int]]) -> str:
    return digest([list(answer) for answer in answers]).hex()[:12]
