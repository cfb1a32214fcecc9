"""Alignment: a language model trained on rewards and preferences, each against a known optimum.

    from minitrain.alignment import AlignConfig, align, final_facts
    task = final_facts(stories, tokenizer)
    align(model, task, AlignConfig(method="grpo"), 50, tokenizer.end_token)

advantages    GAE, whitening, and advantages within a group of answers (GRPO, Dr. GRPO, RLOO)
policy_loss   PPO's clipped losses of policy and value, and four ways to average over tokens
kl            k1, k2 and k3: values, gradients; KL in the reward; an adaptive coefficient
preference    DPO and its variants, from pairs of answers
reward_model  Bradley-Terry, on a Transformer with a head of one output
exact         optima by recursion and enumeration, the binary frontier, best-of-n, KL efficiency
verifiable    rewards that are checked: is the story possible, is its final fact right?
rollouts      answers sampled by the package's own engine, and their log-probabilities
trainer       one short loop for REINFORCE, RLOO, GRPO and PPO

Shapes, beside the course's legend: `B answers  G answers to one prompt  T tokens`.
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "align": "trainer",
        "AlignConfig": "trainer",
        "final_facts": "verifiable",
        "dpo_loss": "preference",
    },
)
