"""A fine-tuning step against PEFT's, and many adapters in one batch against PEFT's mixed batches.

Both adapt copies of the same model, so that only the adapter's own work differs: both wrap a layer,
but PEFT looks up its adapter at every call. Before timing, both must give the same loss, or the
same logits.
"""

from __future__ import annotations

import copy
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, Case, Shapes, peer_module
from minitrain.bench.steps import next_token_loss, random_text, training_step
from minitrain.bench.training import as_llama
from minitrain.finetuning.many import AdapterBank, Factors
from minitrain.finetuning.methods import ALL_LINEAR
from minitrain.finetuning.model import adapt, adapter_groups
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import preset
from minitrain.model.transformer import build

SHAPES = (("1M", 8, 128),)
ROWS = (("10M", 8, 1),)  # a step of generation for 8 users, each with an adapter
RANK, ALPHA = 8, 16
STEP_REASON = (
    "both do the same matmuls beside the layer's own; of (IA)³ and DoRA what is left is a few "
    "pointwise operations, and noise (see the spread)"
)
ROWS_REASON = (
    "each row's factors are gathered from the pages, B·R·(I + O) numbers a layer, where PEFT "
    "computes one adapter after the other from its own tensors"
)


def cases(
    repeats: int = 15, shapes: Shapes = SHAPES, rows: Shapes = ROWS, device: str | None = None
) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    title = f"PEFT {peft().__version__}"
    return [
        *(
            Case(
                f"{method} step {name}, {batch} x {length}",
                title,
                partial(step_measured, method, name, batch, length, repeats, device),
                STEP_REASON,
            )
            for name, batch, length in shapes
            for method in ("lora", "dora", "ia3")
        ),
        *(
            Case(
                f"{batch} adapters in a batch {name}, {batch} x {length}",
                f"adapter_names of {title}",
                partial(rows_measured, name, batch, length, repeats, device),
                ROWS_REASON,
            )
            for name, batch, length in rows
        ),
    ]


def peft() -> ModuleType:
    return peer_module("finetuning", "peft")


def step_measured(
    method: str, name: str, batch: int, length: int, repeats: int, device: str
) -> Comparison:
    model, text = build(preset(name), device=device), random_text(name, batch, length, device)
    theirs = peft().inject_adapter_in_model(peer_config(method), copy.deepcopy(model))
    options = {} if method == "ia3" else {"rank": RANK, "alpha": ALPHA}
    adapt(model, method, **options)
    losses = {
        who: partial(next_token_loss, contender, text)
        for who, contender in ((OURS, model), (PEER, theirs))
    }
    torch.testing.assert_close(losses[OURS](), losses[PEER](), rtol=1e-4, atol=1e-5)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )
    rate = {"lr": 1e-4, "weight_decay": 0.0, "fused": True}
    optimizers = {
        OURS: torch.optim.AdamW(adapter_groups(model, 1e-4), **rate),
        PEER: torch.optim.AdamW(trained, **rate),
    }
    steps = {who: training_step(losses[who], optimizers[who]) for who in losses}
    return compare(steps, repeats, warmup=3)


def peer_config(method: str) -> object:
    if method == "ia3":
        return peft().IA3Config(target_modules=["k", "v", "down"], feedforward_modules=["down"])
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": list(ALL_LINEAR)}
    return peft().LoraConfig(**settings, use_dora=method == "dora")


@torch.no_grad()
def rows_measured(name: str, batch: int, length: int, repeats: int, device: str) -> Comparison:
    """Both over transformers' Llama, the only model that PEFT's mixed batches support."""
    llama = as_llama(build(preset(name), device=device)).eval()
    names = [f"user {i}" for i in range(batch)]
    config = partial(
        peft().LoraConfig, r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "v_proj"]
    )
    theirs = peft().get_peft_model(copy.deepcopy(llama), config(), adapter_name=names[0])
    for each in names[1:]:
        theirs.add_adapter(each, config())
    for path, parameter in theirs.named_parameters():
        if "lora_B" in path:
            parameter.normal_(std=0.1)  # zeros would make all adapters equal
    bank = AdapterBank(llama, 1e9 if device == "cuda" else 1e8, targets=("q_proj", "v_proj"))
    for each in names:
        bank.add(each, factors_of_peer(theirs, each))
    tokens = random_text(name, batch, length, device)[:, :length]  # (B, T)

    def ours() -> Tensor:
        with bank.rows(names):
            return llama(tokens, use_cache=False).logits

    def peer() -> Tensor:
        return theirs.eval()(tokens, use_cache=False, adapter_names=names).logits

    torch.testing.assert_close(ours(), peer(), rtol=1e-3, atol=1e-4)
    return compare({OURS: ours, PEER: peer}, repeats, warmup=3)


def factors_of_peer(model: nn.Module, name: str) -> Factors:
    """One of a PEFT model's adapters, in the bank's format."""
    layers = {
        path: (m.lora_A[name].weight.clone(), m.lora_B[name].weight.clone())
        for path, m in model.get_base_model().named_modules()
        if hasattr(m, "lora_A")
    }
    return Factors(layers, ALPHA / RANK)
