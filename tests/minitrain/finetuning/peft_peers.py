"""A tiny Llama as ours and as transformers', and the same adapter on each."""

from __future__ import annotations

import warnings
from pathlib import Path

import peft
import torch
from torch import nn

from minitrain.finetuning.model import adapt
from minitrain.finetuning.peft_files import adapter_tensors
from minitrain.model.hub.load import load_pretrained
from minitrain.model.transformer import Transformer

from ..model.peers import SMALL, random_peer, random_tokens

CONFIG = SMALL


def same_model(folder: Path, seed: int = 0, **more) -> tuple[Transformer, nn.Module]:
    """In float32: ours, and transformers'."""
    torch.manual_seed(seed)
    peer = random_peer(CONFIG, "llama", **more).float()
    peer.save_pretrained(folder / "base")
    return load_pretrained(folder / "base")[0], peer


def shaken(model: nn.Module) -> nn.Module:
    """Every trained number moves: at its start, an adapter that is lost is not missed."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(noise * 0.1)
    return model


def peer_configs() -> dict[str, peft.PeftConfig]:
    lora = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    task = {"task_type": "CAUSAL_LM"}
    lora |= {**task, "lora_dropout": 0.0}
    return {
        "lora": peft.LoraConfig(**lora),
        "rslora": peft.LoraConfig(**lora, use_rslora=True),
        "dora": peft.LoraConfig(**lora, use_dora=True),
        "pissa": peft.LoraConfig(**lora, init_lora_weights="pissa"),
        "ia3": peft.IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"],
            **task,
        ),
        "norm": peft.LNTuningConfig(target_modules=["input_layernorm", "norm"], **task),
        "p-tuning-v2": peft.PrefixTuningConfig(num_virtual_tokens=5, **task),
        "prefix": peft.PrefixTuningConfig(
            num_virtual_tokens=5, prefix_projection=True, encoder_hidden_size=24, **task
        ),
        "prompt": peft.PromptTuningConfig(num_virtual_tokens=5, **task),
    }


LORA = {"rank": 4, "alpha": 6.0, "targets": ("q", "v", "down")}
OPTIONS = {
    "lora": LORA,
    "rslora": LORA,
    "dora": LORA,
    "pissa": LORA,
    "ia3": {},
    "norm": {"targets": ("attention_norm", "norm")},
    "p-tuning-v2": {"tokens": 5},
    "prefix": {"tokens": 5, "width": 24},
    "prompt": {"tokens": 5},
}


def adapted_pair(method: str, ours: Transformer, peer: nn.Module) -> nn.Module:
    """Adapts ours in place, the peer likewise, and gives ours the numbers that PEFT has drawn."""
    torch.manual_seed(1)
    theirs = peft.get_peft_model(peer, peer_configs()[method])
    adapt(ours, method, **OPTIONS[method])
    with torch.no_grad():
        if method == "prefix":
            copy_prefix(ours.soft_prompt, theirs.prompt_encoder["default"])
        elif method == "p-tuning-v2":
            ours.soft_prompt.table.copy_(theirs.prompt_encoder["default"].embedding.weight)
        elif method != "pissa":  # which begins at the weights' own singular vectors
            drawn = peft.get_peft_model_state_dict(theirs)
            for name, tensor in adapter_tensors(ours).items():
                tensor.copy_(drawn[name])
    return theirs


def copy_prefix(prefix: nn.Module, encoder: nn.Module) -> None:
    first, _, second = encoder.transform
    prefix.vectors.copy_(encoder.embedding.weight)
    prefix.inner.copy_(first.weight), prefix.inner_bias.copy_(first.bias)
    prefix.outer.copy_(second.weight), prefix.outer_bias.copy_(second.bias)


def train(model: nn.Module, loss_of, steps: int, lr: float = 3e-3) -> list[float]:
    """`loss_of(step)` -> the losses of so many steps of AdamW on what asks for gradients."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0), []
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def logits_of(theirs: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """PEFT's, without those of a prompt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs(input_ids=tokens).logits[:, -tokens.shape[1] :]


def batch(step: int) -> torch.Tensor:
    torch.manual_seed(100 + step % 4)
    return random_tokens(CONFIG, 3, 14)
