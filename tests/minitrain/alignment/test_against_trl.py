"""TRL's own functions on the same tensors: losses are equal to 1e-6, and gradients too."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from minitrain.alignment import kl as kls
from minitrain.alignment import policy_loss as losses
from minitrain.alignment import preference as prefer
from minitrain.alignment import reward_model as rm
from minitrain.alignment.advantages import grpo_advantages

pytest.importorskip("trl")
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.utils import nanstd

F64 = torch.float64
ACCELERATOR = SimpleNamespace(
    num_processes=1,
    device="cpu",
    reduce=lambda x, reduction: x,
    gather=lambda x: x,
    gather_for_metrics=lambda x: x,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def trl_grpo(logp, old, ref, advantages, mask, loss_type, beta, delta, by_ratio):
    own = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logp, torch.zeros_like(logp), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=by_ratio, delta=delta, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=mask.shape[1],
        accelerator=ACCELERATOR,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "num_items_in_batch": mask.sum(),
    }
    return GRPOTrainer._compute_loss(own, None, inputs)


@pytest.mark.parametrize("loss_type", losses.AGGREGATIONS)
@pytest.mark.parametrize("beta, delta, by_ratio", [(0.0, None, False), (0.3, 3.0, False), (0.3, None, True)])  # fmt: skip
def test_grpos_loss(loss_type, beta, delta, by_ratio):
    logp, old, ref, advantages = (drawn(6, 5, seed=i) for i in range(4))
    old = logp + 0.4 * old
    mask = (torch.arange(5) < torch.tensor([5, 1, 3, 2, 5, 4])[:, None]).to(F64)
    leaf = logp.requires_grad_()
    theirs = trl_grpo(leaf, old, ref, advantages[:, 0], mask, loss_type, beta, delta, by_ratio)
    each = losses.policy_loss(leaf, old, advantages[:, :1], 0.2, 0.28, dual_clip=delta)
    k3 = kls.k3_by_ratio(leaf, ref, old) if by_ratio else kls.k3(leaf, ref)
    ours = losses.AGGREGATIONS[loss_type](each + beta * k3, mask, losses.Totals.of(mask))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    gradients = (torch.autograd.grad(loss, leaf)[0] for loss in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


def test_grpos_standard_deviation():
    rewards = drawn(12)
    groups = rewards.view(3, 4)
    theirs = (groups - groups.mean(1, keepdim=True)) / (nanstd(groups, 1, keepdim=True) + 1e-4)
    torch.testing.assert_close(grpo_advantages(rewards, 4), theirs.flatten(), rtol=0, atol=1e-6)


def trl_dpo(logp, ref, lengths, loss_type, beta, smoothing):
    """logp and ref (2B, T), the chosen ones first."""
    zero = torch.zeros_like(logp)
    out = SimpleNamespace(log_probs=logp, entropy=zero, mean_logits=zero, is_top1=zero.bool())
    mask = (torch.arange(logp.shape[1] + 1) <= lengths[:, None]).long()
    mask[:, 0] = 0  # the prompt
    own = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=ACCELERATOR,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        beta=beta,
        label_smoothing=smoothing,
        use_weighting=False,
        args=SimpleNamespace(),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _tp_size=1,
        _total_train_tokens=0,
    )
    ref_chosen, ref_rejected = ref.chunk(2)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": ref_chosen,
        "ref_rejected_logps": ref_rejected,
    }
    return DPOTrainer._compute_loss(own, lambda **k: out, inputs, False)


@pytest.mark.parametrize("loss_type", ["sigmoid", "robust", "ipo"])
def test_losses_on_pairs(loss_type):
    beta, lengths = 0.3, torch.tensor([5, 2, 4, 3, 1, 5])
    counted = (torch.arange(5) < lengths[:, None]).to(F64)
    logp, ref = drawn(6, 5) * counted, (drawn(6, 5, seed=1) * counted).sum(1)
    theirs = trl_dpo(logp, ref, lengths, loss_type, beta, 0.2)
    summed = prefer.sequence_log_probability(logp, counted)
    if loss_type == "ipo":
        summed, ref = summed / lengths, ref / lengths
    four = (*summed.chunk(2), *ref.chunk(2))
    ours = {
        "sigmoid": lambda: prefer.dpo_loss(*four, beta),
        "robust": lambda: prefer.robust_dpo_loss(*four, beta, 0.2),
        "ipo": lambda: prefer.ipo_loss(*four, beta),
    }[loss_type]()
    torch.testing.assert_close(ours.mean(), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("margin", [None, 0.7])
@pytest.mark.parametrize("centering", [None, 0.1])
def test_the_reward_models_loss(margin, centering):
    scores = drawn(8)
    own = SimpleNamespace(
        model=SimpleNamespace(training=True),
        _total_train_tokens=0,
        _tp_size=1,
        args=SimpleNamespace(center_rewards_coefficient=centering),
        accelerator=ACCELERATOR,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {} if margin is None else {"margin": margin}
    model = lambda **k: SimpleNamespace(logits=scores[:, None])  # noqa: E731
    model_inputs = {"attention_mask": torch.ones(8, 2), **inputs}
    theirs = RewardTrainer.compute_loss(own, model, model_inputs)
    ours = rm.reward_model_loss(*scores.chunk(2), margin or 0.0, centering or 0.0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
