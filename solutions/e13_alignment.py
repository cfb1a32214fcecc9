# %% [markdown]
# # e13 · Alignment
#
# **Rewards, preferences, PPO, GRPO and DPO, each measured against a best policy that is known exactly. You write the losses and
# the estimators, and see which of them arrive.**
#
# 100 minutes · CPU is enough · before: [e09 · Inference](e09_inference.ipynb) ·
# [map of the course](index.ipynb)
#
# You build: the losses of reward model and DPO, advantages in a group, KL estimators with their gradients, the clipped loss,
# GAE, and an update of your own. You end with this picture: what three runs got for their KL, below the least that it can cost.
#
# ![Pass rate against KL: a curve that no policy can cross, best-of-n on it, and three trained language models to its right](../labs/pictures/e13_alignment.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e13_alignment")

# %% [markdown]
# ## 1 · The best policy is known
#
# A pretrained model gives every answer $y$ a probability $\text{ref}(y)$. A reward $r(y)$ says how good an answer is, and
# alignment wants more of the good ones. But a policy $\pi$ that gives the best answer alone has forgotten how to write. So it pays
# for its distance from the reference, in nats, at a price $\beta$:
#
# $$J(\pi) = \mathbb{E}_{y \sim \pi}\, r(y) - \beta\, \text{KL}(\pi \,\|\, \text{ref}), \qquad \text{KL}(\pi \,\|\, \text{ref}) = \mathbb{E}_{y \sim \pi} \log\frac{\pi(y)}{\text{ref}(y)} .$$

# %% [markdown]
# **Why** is its maximum known? Write $\pi^*(y) = \text{ref}(y)\, e^{r(y)/\beta} / Z$, where $Z$ makes it sum to 1. Take the
# logarithm, solve for $r$, and put it into $J$:
#
# $$J(\pi) = \beta \log Z - \beta\, \text{KL}(\pi \,\|\, \pi^*) .$$
#
# The last term is never negative, and 0 for $\pi = \pi^*$ alone. So the best policy multiplies every probability by
# $e^{r/\beta}$, and $J^* = \beta \log Z$. Move the handle: a high price keeps the reference, a low one leaves only the best.

# %%
ideas.tilted_policy()

# %% [markdown]
# For a language model $Z$ is a sum over all texts. But the course's corpus has a language in which it can be computed: the
# **chain** of [e01](e01_baseline.ipynb), 100 words, each drawn after the one before it. A sentence of 16 words earns 1 for each
# word that begins with b, d or g (18 of the 100 do). Then $Z$ is a recursion backwards over the words, 16 products with a 100 ×
# 100 matrix; reward and KL of *any* policy are one forwards. So a policy is judged here without a single sample.

# %%
from minitrain.alignment.exact import TablePolicy, course_chain

chain = course_chain()
prices = {beta: chain.optimum(beta) for beta in (2.0, 1.0, 0.5, 0.25)}
show.table(
    [
        {"price β": beta, "J*": best.J, "reward": best.reward, "KL (nats)": best.kl}
        for beta, best in prices.items()
    ],
    caption="The best policies, computed; the reference earns 2.08 a sentence",
)

# %% [markdown]
# At β = 1 the best policy earns 4.76 for 1.48 nats. That is the mark for what follows: **J\* = 3.28**.
#
# ## 2 · From preferences
#
# Where does a reward come from? People are asked which of two answers is better. Bradley and Terry's model of 1952 says how
# they choose: with $\sigma$ the sigmoid, answer $c$ is chosen over $d$ with probability $\sigma(r(c) - r(d))$. A **reward model**
# is a network with one output, fitted to such choices by maximum likelihood ([Stiennon et al.](https://arxiv.org/abs/2009.01325)).
# Its loss for a pair is
#
# $$-\log \sigma(r_\text{chosen} - r_\text{rejected} - m) .$$

# %% [markdown]
# $m$ is a margin, for labels that say *how much* better. Only differences count: a model whose scores are all 100 too high fits
# as well. TRL therefore adds a *centring* term, $c \cdot (r_\text{chosen} + r_\text{rejected})^2$, with a small weight $c$.
#
# ### Exercise 1 · `reward_model_loss`
#
# Difficulty 1 of 5 · 6 minutes · 7 points
#
# Write both, and the mean over all pairs. Differences may be large: $\log\sigma(-200)$ is $-200$, not $-\infty$. A negative `centering` is a mistake of
# the caller: the function may do with it as it likes.


# %% tags=["exercise"]
import torch.nn.functional as F


def reward_model_loss(chosen, rejected, margin=0.0, centering=0.0):
    """Scores (B,) of the chosen and the rejected answers -> the mean loss, a
    scalar. `margin`: a number, or (B,). About 2 lines; `F.logsigmoid` helps."""
    ### BEGIN SOLUTION
    loss = -F.logsigmoid(chosen - rejected - margin)
    return (loss + centering * (chosen + rejected).square()).mean()
    ### END SOLUTION


# %% tags=["grade"]
reward_model_loss = lab.grade(reward_model_loss)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The margin makes it harder to be right: it is subtracted from the difference, inside the sigmoid.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `F.logsigmoid(x)` is $\log\sigma(x)$ for any x; `x.sigmoid().log()` is $-\infty$ from about $-104$ on in float32.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two terms a pair: `-F.logsigmoid(…)` and `centering * (…).square()` of the *sum* of the two scores. Then `.mean()` of both.
#
# </details>

# %% [markdown]
# **Goodhart.** A fitted reward is a *proxy*: it is right about what its pairs show often, and makes up the rest. The harder one
# optimises it, the more of what it made up one gets. Here the truth, the *gold* reward, is known, so this can be seen exactly.
# The proxy is a score for each word, fitted by your loss to N pairs of sentences, whose labels are drawn by Bradley and Terry from
# the gold reward. Its best policy at each price is the recursion again: nothing is trained by reinforcement, no noise is left.
#
# The folded cell defines `fitted(pairs)`, which gives the proxy as a chain with the fitted rewards.

# %% tags=["folded"]
from minitrain.alignment.exact import WordChain

reference_policy = TablePolicy(chain)


def fitted(pairs, seed=0, steps=200):
    """The chain with rewards of words fitted to so many labelled pairs."""
    dice = torch.Generator().manual_seed(seed)
    words = reference_policy.sample(2 * pairs, dice)[:, 1:]
    counts = torch.zeros(2 * pairs, 100)
    counts.scatter_add_(1, words, torch.ones(words.shape))
    gold = chain.rewards.float()[words].sum(1)
    first = torch.rand(pairs, generator=dice) < (gold[:pairs] - gold[pairs:]).sigmoid()
    one, other = counts[:pairs], counts[pairs:]
    chosen = torch.where(first[:, None], one, other)
    rejected = torch.where(first[:, None], other, one)
    scores = torch.zeros(100, requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        reward_model_loss(chosen @ scores, rejected @ scores).backward()
        optimizer.step()
    return WordChain(chain.reference, scores.detach().double(), chain.length)


# %% [markdown]
# **Predict**: fitted to 100 pairs and optimised at ever lower prices, how much gold will the policy earn at the end, at β = 0.05?
# The reference earns 2.08, 16 is all there is.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 12
### LAB guess = None  # gold reward of a sentence, your guess
### END SOLUTION
lab.predict("gold", guess)

# %% tags=["experiment"]
overoptimised = []
for pairs in lab.size("pairs"):
    proxy = fitted(pairs)
    for beta in (8, 4, 2, 1, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05):
        best = proxy.optimum(beta)
        gold, kl = (float(x) for x in chain.evaluate(best.policy))
        row = {"pairs": pairs, "beta": beta, "kl": kl, "gold": gold}
        overoptimised.append({**row, "proxy": best.reward})

# %%
few = lab.size("pairs")[0]
lab.reveal("gold", [row["gold"] for row in overoptimised if row["pairs"] == few][-1])
show.lines(
    {
        f"{pairs} pairs": tuple(
            [
                row["kl"] ** 0.5 if k == "kl" else row[k]
                for row in overoptimised
                if row["pairs"] == pairs
            ]
            for k in ("kl", "gold")
        )
        for pairs in lab.size("pairs")
    },
    x="distance from the reference, √KL (√nats)",
    y="gold reward of a sentence",
    title="The best policy for a fitted reward (computed)",
    caption="Each point is the optimum of the proxy at one price β.",
)

# %% tags=["grade"]
lab.experiment("overoptimised", overoptimised)

# %% [markdown]
# **Explain**: all the way the proxy's own reward rises. With few pairs the gold rises with it, reaches a top and falls: the policy now
# collects words that won by chance. [Gao et al.](https://arxiv.org/abs/2210.10760) found this turn in language models, and
# that more data for the reward model moves it out. With a thousand pairs there is no turn here.
#
# A lower price is thus no better policy. The KL is a budget, and it pays to know where it went.

# %% [markdown]
# **Without a reward model.** Solve $\pi^* = \text{ref}\, e^{r/\beta}/Z$ for the reward: $r(y) = \beta \log\frac{\pi^*(y)}{\text{ref}(y)} + \beta\log Z$. In a
# difference $\log Z$ cancels. So a policy *is* a reward model, and can be fitted to the pairs itself: that is DPO
# ([Rafailov et al.](https://arxiv.org/abs/2305.18290)). With
#
# $$h = \log\frac{\pi(c)}{\text{ref}(c)} - \log\frac{\pi(d)}{\text{ref}(d)}, \qquad \text{loss} = -\log\sigma(\beta h) .$$

# %% [markdown]
# Labels can be wrong. cDPO believes a label with probability $1 - e$ only: its loss is $1 - e$ times the one above, and $e$ times the one
# for the swapped pair, $-\log\sigma(-\beta h)$.
#
# ### Exercise 2 · `dpo_loss`
#
# Difficulty 2 · 8 minutes · 8 points
#
# The four tensors are log-probabilities of *whole* answers: sums over their tokens. Write both, with
# `label_smoothing` as $e$. What is the loss before the first step, when policy and reference are the same?


# %% tags=["exercise"]
def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.1, label_smoothing=0.0):
    """Log-probabilities (B,) of the chosen and the rejected answers, by policy
    and reference -> the loss of each pair (B,). About 3 lines."""
    ### BEGIN SOLUTION
    h = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    right, wrong = -F.logsigmoid(h), -F.logsigmoid(-h)
    return (1 - label_smoothing) * right + label_smoothing * wrong
    ### END SOLUTION


# %% tags=["grade"]
dpo_loss = lab.grade(dpo_loss)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# A log ratio is a difference of log-probabilities: `chosen - ref_chosen`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# β multiplies $h$ inside the sigmoid. At the start $h = 0$, and $-\log\sigma(0) = \log 2 = 0.693$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One line for `h`, with β in it; then the two parts `-F.logsigmoid(h)` and `-F.logsigmoid(-h)`, weighted by $1 - e$ and $e$. No mean.
#
# </details>

# %% [markdown]
# **Run**: a space of 32 answers with a random reference and random rewards. All pairs, their labels in expectation, so no noise; the
# losses are minimised to the last digit, and the found policy is compared with $\pi^*$. Once the labels are true, and once 10%
# of them are swapped. *Robust* DPO ([Chowdhury et al.](https://arxiv.org/abs/2403.00409)) divides swapped labels out:
# $\left((1-e)\,\ell(h) - e\,\ell(-h)\right)/(1 - 2e)$ with $\ell(h) = -\log\sigma(\beta h)$.

# %% tags=["folded"]
from minitrain.alignment.preference import ipo_loss, robust_dpo_loss

dice = torch.Generator().manual_seed(0)
ref = torch.randn(32, generator=dice, dtype=torch.float64).log_softmax(0)
rewards = torch.randn(32, generator=dice, dtype=torch.float64)
one, other = (~torch.eye(32, dtype=torch.bool)).nonzero().T
BETA = 0.5


def minimised(loss, swapped):
    """The policy (32,) of the least expected loss, labels swapped so often."""
    p = (rewards[one] - rewards[other]).sigmoid()  # that `one` is better
    weight = ref.exp()[one] * ref.exp()[other] * (p + swapped - 2 * p * swapped)
    logits = ref.clone().requires_grad_()
    search = {"max_iter": 3000, "history_size": 50, "line_search_fn": "strong_wolfe"}
    exact = {"tolerance_grad": 1e-13, "tolerance_change": 1e-16}
    optimizer = torch.optim.LBFGS([logits], **search, **exact)

    def closure():
        optimizer.zero_grad()
        logp = logits.log_softmax(0)
        total = (weight * loss(logp[one], logp[other], ref[one], ref[other])).sum()
        total.backward()
        return total

    for _ in range(3):
        optimizer.step(closure)
    return logits.detach().softmax(0)


# %% tags=["experiment"]
best_of_32 = (ref + rewards / BETA).softmax(0)
ways = {
    "DPO": lambda *logps: dpo_loss(*logps, BETA),
    "cDPO": lambda *logps: dpo_loss(*logps, BETA, 0.1),
    "robust DPO": lambda *logps: robust_dpo_loss(*logps, BETA, 0.1),
    "IPO": lambda *logps: ipo_loss(*logps, BETA),
}
preferences = []
for name, swapped in (*((name, 0.1) for name in ways), ("DPO", 0.0), ("IPO", 0.0)):
    distance = (minimised(ways[name], swapped) - best_of_32).abs().sum() / 2
    row = {"loss": name, "swapped": swapped, "distance": float(distance)}
    preferences.append(row)

# %%
show.table(
    [
        {
            "loss": row["loss"],
            "labels swapped": f"{row['swapped']:.0%}",
            "distance to π*": f"{row['distance']:.2g}",
        }
        for row in preferences
    ],
    caption="Total variation between the minimiser and π*, 0 to 1; computed",
)

# %% tags=["grade"]
lab.experiment("preferences", preferences)

# %% [markdown]
# **Question**: 10% of the labels are swapped. Which loss still ends at π\*: `"DPO"`, `"cDPO"`, `"robust DPO"` or `"IPO"`?

# %% tags=["question"]
### BEGIN SOLUTION
still_right = "robust DPO"
### LAB still_right = None  # your answer, one of the four
### END SOLUTION

# %% tags=["grade"]
lab.answer("still_right", still_right)

# %% [markdown]
# **Explain**: with true labels DPO's minimum is the best policy, to rounding. Swapped labels make every difference look smaller, and
# cDPO makes it smaller once more: it refuses to be certain, and undoes nothing. IPO aims at a fixed margin, which is another policy
# by design.
#
# ## 3 · Sampling, and a baseline
#
# Pairs that lie in a file are someone else's answers. The other way is to sample from the policy itself, and to raise the
# probability of what earned much:
#
# $$\nabla J = \mathbb{E}_{y\sim\pi}\, A(y)\, \nabla\log\pi(y), \qquad A = \text{reward} - \text{baseline} .$$

# %% [markdown]
# A baseline that does not depend on the answer changes no expectation, for $\mathbb{E}\,\nabla\log\pi = 0$, and takes noise away. PPO learns
# it, by a second network. GRPO ([Shao et al.](https://arxiv.org/abs/2402.03300)) asks each prompt $G$ times: the baseline is the mean
# of the group, and $A$ is divided by the group's standard deviation.
#
# ### Exercise 3 · `grpo_advantages`
#
# Difficulty 2 · 6 minutes · 7 points
#
# The $G$ answers to a prompt stand side by side: 0 0 0 1 1 1. Add $10^{-4}$ to the standard deviation, as TRL does; it is the unbiased one, over
# $G - 1$. If all answers of a group earn the same, the advantage is exactly 0.


# %% tags=["exercise"]
def grpo_advantages(rewards, group_size: int):
    """rewards (B,), floats -> advantages (B,), in the same order. About 3
    lines."""
    ### BEGIN SOLUTION
    groups = rewards.view(-1, group_size)
    spread = groups.std(dim=1, keepdim=True)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (spread + 1e-4)).flatten()
    ### END SOLUTION


# %% tags=["grade"]
grpo_advantages = lab.grade(grpo_advantages)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Make a table of it: a row a prompt. Then mean and standard deviation of each row.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `rewards.view(-1, group_size)`. `torch.std` divides by $G - 1$ unless it is told otherwise.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `groups.mean(dim=1, keepdim=True)` can be subtracted from the table as it is; so can the standard deviation divide. `.flatten()` at the end.
#
# </details>

# %% [markdown]
# ### Where the KL goes
#
# The other half of $J$ is the KL. It is estimated from the same samples, and three estimates are in use
# ([Schulman](http://joschu.net/blog/kl-approx.html)). With $d = \log\text{ref} - \log\pi$ of a sample:
#
# $$k_1 = -d, \qquad k_2 = \tfrac12 d^2, \qquad k_3 = e^d - 1 - d .$$
#
# $k_1$ is the definition. $k_3$ has the same mean and is never negative. Most code takes one of them as a term of the *loss*, so that backward
# differentiates its value. What is the mean of *that* gradient? With a handful of outcomes nothing need be sampled:
# an expectation is a sum.

# %% [markdown]
# ### Exercise 4 · `expected`
#
# Difficulty 3 · 12 minutes · 8 points
#
# Given an estimator, a function of `logp` and `ref_logp` that returns an estimate for each outcome, give its mean and its standard deviation over
# samples from the policy, and the mean of the gradient that backward takes, with respect to `logits`. A sample's probability is a
# weight: backward does not see that the sample was *drawn* with it. The caller's tensors stay as they are, and ask for no gradient.


# %% tags=["exercise"]
def k1(logp, ref_logp):
    return logp - ref_logp


def k2(logp, ref_logp):
    return 0.5 * (logp - ref_logp).square()


def k3(logp, ref_logp):
    return torch.expm1(ref_logp - logp) - (ref_logp - logp)


def expected(estimator, logits, ref_logits):
    """logits (V,) of policy and reference -> (mean, standard deviation) as
    floats, and the mean gradient (V,). About 8 lines."""
    ### BEGIN SOLUTION
    logits = logits.detach().requires_grad_()
    logp, ref_logp = logits.log_softmax(0), ref_logits.log_softmax(0)
    weights = logp.detach().exp()
    estimates = estimator(logp, ref_logp)
    mean = (weights * estimates).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    variance = (weights * (estimates - mean).square()).sum()
    return mean.item(), variance.sqrt().item(), gradient
    ### END SOLUTION


# %% tags=["grade"]
expected = lab.grade(expected)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Make a leaf of the logits: `logits.detach().requires_grad_()` is a new tensor, which the caller does not see.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `weights = logp.detach().exp()`: constants. The mean is `(weights * estimates).sum()`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The gradient is that of the mean: `torch.autograd.grad(mean, logits)` gives a tuple of one. The variance is the weighted mean of
# squared differences from the mean, over all outcomes, not over V − 1.
#
# </details>

# %% [markdown]
# **Run** it on two random policies of eight outcomes. The last row multiplies $k_3$ by the ratio of the policy to the one that drew the
# sample, whose value is 1: TRL has done so by default since 2026.

# %%
from minitrain.alignment.kl import k3_by_ratio, kl_divergence

dice = torch.Generator().manual_seed(1)
policy, reference = torch.randn(2, 8, generator=dice, dtype=torch.float64)
leaf = policy.clone().requires_grad_()
exact_kl = kl_divergence(leaf, reference)
(true,) = torch.autograd.grad(exact_kl, leaf)

# %%
named = {"k1": k1, "k2": k2, "k3": k3, "ratio · k3": k3_by_ratio}
measured = {name: expected(f, policy, reference) for name, f in named.items()}
show.table(
    [
        {
            "estimate": name,
            "mean": f"{mean:.3f}",
            "standard deviation": f"{sd:.2f}",
            "gradient's error": f"{(gradient - true).norm() / true.norm():.1%}",
        }
        for name, (mean, sd, gradient) in measured.items()
    ],
    caption=f"By enumeration; the KL is {exact_kl:.3f}",
)

# %% [markdown]
# **Explain**: as a value $k_1$ and $k_3$ are right. As a term of the loss $k_1$ pulls nowhere: its mean gradient is 0, an error
# of 100%. $k_3$'s gradient is that of the *other* divergence, $\text{KL}(\text{ref}\,\|\,\pi)$. $k_2$, the one whose value is wrong, has the right gradient, and so has $k_3$ times the
# ratio: sample by sample they have the same. Published GRPO has $k_3$ in the loss.
#
# That is one token. A sentence has 16, and a word decides which words can follow. An estimate in the loss pulls on each token
# for itself; it does not know that this token leads to *later* ones that cost KL.

# %% [markdown]
# Put into the **reward**, as $r - \beta\sum_t k_1$ of the whole sentence, the KL is weighed with $\nabla\log\pi$ of every token, the early ones too.
#
# The folded cell defines `loss_of(baseline, place)`: a loss for `train_table`, which samples 512 sentences a step from a table of
# 100 × 100 numbers and follows the loss by Adam.

# %% tags=["folded"]
from minitrain.alignment.exact import train_table


def minus_mean(rewards, group_size):
    groups = rewards.view(-1, group_size)
    return (groups - groups.mean(1, keepdim=True)).flatten()


def loss_of(baseline, place, estimator=k3):
    """Advantages by `baseline`; the KL in the "reward" or the "loss"."""

    def loss(words, scores, logp, ref_logp, beta):
        if place == "reward":
            scores = scores - beta * k1(logp.detach(), ref_logp).sum(1)
        each = -baseline(scores, 8)[:, None] * logp
        if place == "loss":
            each = each + beta * estimator(logp, ref_logp)
        return each.sum(1).mean()

    return loss


# %% [markdown]
# **Predict**: J\* is 3.28, the reference has 2.08. Where will GRPO as published end, $k_3$ in the loss and advantages divided by the standard
# deviation?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3.2
### LAB guess = None  # J after training, your guess
### END SOLUTION
lab.predict("published", guess)

# %% tags=["experiment"]
runs = {
    "k1 in the reward": loss_of(minus_mean, "reward"),
    "the same, / std": loss_of(grpo_advantages, "reward"),
    "ratio · k3 in the loss": loss_of(minus_mean, "loss", k3_by_ratio),
    "k3 in the loss": loss_of(minus_mean, "loss"),
    "k3 in the loss, / std": loss_of(grpo_advantages, "loss"),
}
steps, best, estimators = lab.size("steps"), chain.optimum(1.0), []
for name, loss in runs.items():
    found = train_table(chain, loss, beta=1.0, steps=steps).evaluate(1.0)
    row = {"run": name, "reward": found.reward, "kl": found.kl, "J": found.J}
    estimators.append({**row, "gap": best.J - found.J})
lab.reveal("published", estimators[-1]["J"])
show.table(estimators, caption=f"{steps} steps, evaluated exactly; J* = {best.J:.3f}")

# %% tags=["grade"]
lab.experiment("estimators", estimators)

# %%
show.bars(
    [row["run"].replace(" in", "\nin").replace(", ", ",\n") for row in estimators],
    [row["gap"] for row in estimators],
    y="J* − J (reward, β = 1)",
    title="What is missing to the best policy (computed exactly)",
    x="where the KL is, and what the advantage is divided by",
)

# %% [markdown]
# **Explain**: with $k_1$ in the reward a run ends within 1% of J\*. With a KL term in the loss it settles elsewhere, however long it
# runs. Dividing by the standard deviation multiplies the reward's weight by something that changes from group to group: $\beta$ no longer means
# what it says. (arXiv [2512.21852](https://arxiv.org/abs/2512.21852) finds the same order on language models.)
#
# ## 4 · Using answers more than once
#
# Sampling is dear, so one batch is used for several steps. After the first, the answers come from a policy that is no longer the one that is trained. The
# ratio $\rho = \pi(y_t)/\pi_\text{old}(y_t)$ of a token corrects for that, and PPO ([Schulman et al.](https://arxiv.org/abs/1707.06347)) stops a token that
# has moved far enough:
#
# $$\ell = \max\left(-\rho A,\; -\text{clip}(\rho, 1 - \varepsilon, 1 + \varepsilon)\, A\right) .$$

# %%
ideas.clipped_loss()

# %% [markdown]
# Where the curve is flat the gradient is 0. For $A < 0$ and a large ratio it is *not* flat: a bad token that became likely must be pulled back.
# But with $\rho = 50$ it outweighs the whole batch. The *dual clip* bounds that: for $A < 0$ the loss is at most $c\,|A|$.
#
# ### Exercise 5 · `policy_loss`
#
# Difficulty 3 · 10 minutes · 9 points
#
# `clip` is $\varepsilon$ below 1, `clip_high` the one above; where it is None both are `clip`. `dual_clip` is $c$, above `1 + clip_high`, or None.
# At a ratio of exactly 1 the gradient is $-A$.


# %% tags=["exercise"]
def policy_loss(logp, old_logp, advantages, clip=0.2, clip_high=None, dual_clip=None):
    """All (B, T) -> the loss of each token (B, T). About 6 lines."""
    ### BEGIN SOLUTION
    high = clip if clip_high is None else clip_high
    ratio = (logp - old_logp).exp()
    near = ratio.clamp(1 - clip, 1 + high)
    loss = torch.maximum(-advantages * ratio, -advantages * near)
    if dual_clip is not None:
        bounded = loss.minimum(-advantages * dual_clip)
        loss = torch.where(advantages < 0, bounded, loss)
    return loss
    ### END SOLUTION


# %% tags=["grade"]
policy_loss = lab.grade(policy_loss)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The ratio of probabilities is `(logp - old_logp).exp()`. Two losses for each token, and the larger counts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Look at the picture's four arms: for A > 0 it is flat on the right, for A < 0 on the left. `torch.maximum` does both.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `ratio.clamp(1 - clip, 1 + high)`. The dual clip last, for negative advantages alone: the smaller of the loss and
# `-advantages * dual_clip`, chosen by `torch.where`. `clip_high` may be 0: ask whether it `is None`.
#
# </details>

# %% [markdown]
# **Run**: sampling and training can run side by side if answers may be a step old, or sixteen. On the chain language, $k_1$ in the
# reward, three ways to learn from old answers:
#
# - **as if fresh**: advantages and penalty as they were when the answers were drawn; no ratio;
# - **with the ratio**: the same, in your loss;
# - **a fresh penalty**: no ratio, but $k_1$ of the *current* policy.


# %% tags=["experiment"]
def stale(way):
    def loss(words, scores, logp, ref_logp, beta, old=None):
        now = logp.detach()
        old = now if old is None else old
        penalty = k1(now if way == "a fresh penalty" else old, ref_logp).sum(1)
        advantages = minus_mean(scores - beta * penalty, 8)[:, None].expand_as(logp)
        drawn_by = old if way == "with the ratio" else now
        return policy_loss(logp, drawn_by, advantages).sum(1).mean()

    return loss


LAGS, WAYS = (0, 1, 4, 16), ("as if fresh", "with the ratio", "a fresh penalty")
staleness = []
for way in WAYS:
    for lag in LAGS:
        run = train_table(chain, stale(way), steps=steps, lag=lag)
        gap = best.J - run.evaluate(1.0).J
        staleness.append({"lag": lag, "way": way, "gap": gap})

# %%
show.lines(
    {
        way: (LAGS, [row["gap"] for row in staleness if row["way"] == way])
        for way in WAYS
    },
    x="age of the answers (steps)",
    y="J* − J (reward, β = 1)",
    log="y",
    title="Answers of an older policy (computed exactly)",
)

# %% tags=["grade"]
lab.experiment("staleness", staleness)

# %% [markdown]
# **Explain**: a step of age costs little, which is why asynchronous systems allow it
# ([Noukhovitch et al.](https://arxiv.org/abs/2410.18252)). At sixteen the first way has gone astray, and the ratio saves most of it, not all: clipped tokens teach
# nothing. The third way hardly notices. At $\pi^*$ the judged reward $r - \beta\log(\pi/\text{ref})$ is the same for *every* sentence, whoever drew it; making it constant
# is a goal that old answers serve as well as new ones ([Bartoldson et al.](https://arxiv.org/abs/2503.18929)).

# %% [markdown]
# ## 5 · Which token earned it?
#
# So far each token had its sentence's advantage. PPO's value model predicts, before each token, what is still to come: $V_t$. Then a single token
# can be judged: $\delta_t = r_t + \gamma V_{t+1} - V_t$ is how much better things look after it. GAE
# ([Schulman et al.](https://arxiv.org/abs/1506.02438)) adds what comes later, fading by $\gamma\lambda$ a token:
#
# $$A_t = \delta_t + \gamma\lambda\, A_{t+1} .$$

# %%
ideas.credit()

# %% [markdown]
# λ = 0 trusts the value model, λ = 1 nothing but the outcome. After the last token nothing is to come: there $V = 0$ and $A = 0$.
#
# Some tokens are not the policy's: padding at the end, or what a tool wrote in the middle. They get advantage 0, and the recursion
# passes *through* them as if they were not there: the next token that counts is the next one. Their own rewards and values are any
# numbers, and change nothing.

# %% [markdown]
# ### Exercise 6 · `gae`
#
# Difficulty 4 · 14 minutes · 9 points
#
# Also give the returns $A + V$, which the value model learns. Both are 0 where the mask is 0. Rows are of different lengths, and their masks have
# holes.


# %% tags=["exercise"]
def gae(rewards, values, mask, gamma=1.0, lam=0.95):
    """rewards, values, mask (B, T), the mask 1 on tokens that count and 0 on
    others -> advantages and returns (B, T). About 10 lines."""
    ### BEGIN SOLUTION
    advantages = torch.zeros_like(values)
    advantage = next_value = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        counts = mask[:, t] > 0
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = torch.where(counts, delta + gamma * lam * advantage, advantage)
        next_value = torch.where(counts, values[:, t], next_value)
        advantages[:, t] = advantage * counts
    return advantages, (advantages + values) * (mask > 0)
    ### END SOLUTION


# %% tags=["grade"]
gae = lab.grade(gae)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Walk the columns from the last to the first, for all rows at once, and carry two tensors (B,): the advantage and the value of
# the next token that counts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Both begin at 0. Where a token does not count, both stay what they were: `torch.where(counts, new, old)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In the loop: `delta` from the formula; then the carried advantage and the carried value, each through `torch.where`; then the column
# of the result, which is 0 where the token does not count.
#
# </details>

# %% [markdown]
# ## 6 · The price of a pass rate
#
# Many rewards are 0 or 1: the tests pass, or not. Let the reference pass with probability $q$. A policy that passes with $r$ has
# spent at least
#
# $$\text{KL} \ge r\log\frac{r}{q} + (1-r)\log\frac{1-r}{1-q},$$
#
# and exactly that if it only reweights: more of what passes, less of what fails, ratios within each as they were. This **frontier** over the KL that was
# measured is the **KL efficiency**, between 0 and 1. What is below 1 was spent on changes that nobody asked for.

# %% [markdown]
# Training is not the only way to get there. **Best-of-n** samples n answers and keeps the best: it passes with $1 - (1-q)^n$, and lies *on* the
# frontier. Its KL is often given as $\log n - (n-1)/n$, which is 1.84 for n = 16.
#
# **Predict**: its true KL for n = 16 and q = 0.1?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 1.8
### LAB guess = None  # nats, your guess
### END SOLUTION
lab.predict("best_of_16", guess, unit="nats")

# %%
from minitrain.alignment.exact import folklore_kl, frontier, kl_efficiency

lab.reveal("best_of_16", frontier(1 - 0.9**16, 0.1), q=0.1, n=16)
show.table(
    [
        {
            "n": n,
            "passes": 1 - 0.9**n,
            "KL (nats)": frontier(1 - 0.9**n, 0.1),
            "log n − (n−1)/n": folklore_kl(n),
        }
        for n in (1, 4, 16, 64)
    ],
    caption="Best-of-n where one answer in ten passes, computed",
)

# %% [markdown]
# The formula in print is an upper bound ([Beirami et al.](https://arxiv.org/abs/2401.01879)): it holds where no two answers are equally good.
#
# ## 7 · A language model
#
# Now a real one, small: a Transformer of two layers that has read the opening sentences of the village stories. The task: begin a story **with a loaf**
# in somebody's hands. "One rainy day, Mia the kind baker sat in the kitchen with a small warm loaf." The reward is *verifiable*: 1 if the storyteller
# could have written the sentence, and it names a loaf; else 0.
#
# The folded cell makes model, task and `measured_rate`, pass rate and KL of 512 sentences.

# %% tags=["folded"]
import copy

from minitrain.alignment.kl import k1 as log_ratio
from minitrain.alignment.rollouts import answer_log_probabilities, as_rows
from minitrain.alignment.rollouts import batched_sampler, naive_sampler, repeat_prompts
from minitrain.alignment.trainer import AlignConfig, align
from minitrain.alignment.verifiable import Task, consistent_sentences
from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.training.loop import TrainConfig, train

stories = make_corpus(lab.size("corpus"), seed=1).documents
openings = [story.split(". ")[0] + "." for story in stories]
tokenizer = train_tokenizer(openings, 400)
END = tokenizer.end_token
packed = pack(tokenizer.encode_batch(openings), 64, END)
shape = {"hidden_size": 64, "layers": 2, "ffn_size": 192}
base = build(preset("0.5M", vocab_size=400, **shape))
train(base, Loader(packed, 32), TrainConfig(steps=lab.size("pretrain"), lr=6e-3))


def loaf(number, answer):
    """1.0 for a possible opening with a loaf."""
    text = tokenizer.decode(answer)
    return float("loaf" in text and consistent_sentences(text)[0] == 1)


task = Task([[END]], loaf, max_new_tokens=48)


@torch.no_grad()
def measured_rate(model, count=512):
    """Pass rate, and KL to the base model in nats, of so many sentences."""
    settings = SamplingParameters(task.max_new_tokens, 1.0, seed=99)
    answers = batched_sampler(model, END)(task.prompts, settings, count)
    rows = as_rows(repeat_prompts(task.prompts, count), answers, END)
    logps = (answer_log_probabilities(m, rows) for m in (model, base))
    kl = (log_ratio(*logps) * rows.mask).sum(1).mean()
    passed = sum(loaf(0, a.tokens) for a in answers if a.ended)
    return passed / count, float(kl)


# %% [markdown]
# Three runs of `align`, the package's trainer, 64 sentences a step: GRPO without a price, as TRL's defaults have it; and, with the KL in the reward, a price of 0.1,
# once with fresh sentences and once with sentences that are a step old.
#
# **Predict**: which share of a step's time is spent sampling and judging, not training?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.7
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("rollouts", guess, unit="share")

# %% tags=["experiment"]
q, _ = measured_rate(base)
settings = {
    "GRPO, β = 0": {"method": "grpo"},
    "RLOO, β = 0.1": {"method": "rloo", "beta": 0.1},
    "RLOO, a step old": {"method": "rloo", "beta": 0.1, "lag": 1},
}
language, curves = [], {}
for name, own in settings.items():
    model = copy.deepcopy(base)
    config = AlignConfig(prompts=1, group_size=64, lr=1e-3, **own)
    with_cache = batched_sampler(model, END)
    told = align(model, task, config, lab.size("rl_steps"), END, base, with_cache)
    curves[name] = [r.step for r in told], [r.reward for r in told]
    passes, kl = measured_rate(model)
    seconds = (sum(r.rollout_seconds for r in told), sum(r.train_seconds for r in told))
    row = {"run": name, "base": q, "passes": passes, "kl": kl}
    row |= {"rollout_seconds": seconds[0], "train_seconds": seconds[1]}
    language.append({**row, "efficiency": kl_efficiency(passes, q, kl)})

# %%
rolled = sum(row["rollout_seconds"] for row in language)
trained = sum(row["train_seconds"] for row in language)
lab.reveal("rollouts", rolled / (rolled + trained))
show.table(
    [
        {
            "run": row["run"],
            "passes": f"{row['passes']:.0%}",
            "KL (nats)": f"{row['kl']:.2f}",
            "KL efficiency": f"{row['efficiency']:.0%}",
        }
        for row in language
    ],
    caption=f"After {lab.size('rl_steps')} steps, measured on 512 sentences; before: {q:.1%}",
)

# %% tags=["grade"]
lab.experiment("language", language)

# %%
show.lines(
    curves,
    x="step",
    y="pass rate of the step's 64 sentences",
    title="An opening with a loaf (measured)",
)

# %% [markdown]
# **Explain**: all learn it in some twenty steps. Without a price the model spends three times what the pass rate needs: sentences that pass become
# alike, which earns nothing. A price of 0.1 halves that, at the same pass rate, and sentences a step old do as well as fresh ones.
#
# Most of a step goes into sampling, here as elsewhere: OpenRLHF's authors report 80% for long answers
# ([repository](https://github.com/OpenRLHF/OpenRLHF)). And this sampler already keeps keys and values (e09). Without a cache it
# computes the whole sentence again for each token; the next cell counts tokens for eight sentences.

# %%
lengths = [len(tokenizer.encode(text)) + 1 for text in openings[:8]]
again = sum(n * (n + 1) // 2 for n in lengths)
show.table(
    [
        {"sampler": "everything again", "tokens computed": again},
        {"sampler": "with a cache", "tokens computed": sum(lengths)},
    ],
    caption="Eight opening sentences, counted",
)

# %% [markdown]
# **Two questions.** If sampling and training ran side by side on two machines like this one, answers a step old, how many times as fast would the steps of all three
# runs of your table be? And instead of the first run: from which n on does best-of-n pass more often than that run does?

# %% tags=["question"]
### BEGIN SOLUTION
times_as_fast = (rolled + trained) / max(rolled, trained)
import math

passes = language[0]["passes"]
best_n = math.floor(math.log(1 - passes) / math.log(1 - q)) + 1
### LAB times_as_fast = None  # your answer, a factor
### LAB best_n = None  # your answer, a whole number
### END SOLUTION

# %% tags=["grade"]
lab.answer("times_as_fast", times_as_fast)

# %% tags=["grade"]
lab.answer("best_n", best_n)

# %% [markdown]
# Training moves that cost into the weights once; best-of-n pays it with each answer.
#
# Last, the picture that the lab promised (its cell is folded).

# %% tags=["picture", "folded"]
with show.canvas() as (figure, ax):
    rates = [q + (0.999 - q) * i / 200 for i in range(201)]
    ax.plot([frontier(r, q) for r in rates], rates, "--", color="#666666")
    ns = [4, 8, 16, 32, 64]
    on_it = [1 - (1 - q) ** n for n in ns]
    ax.plot([frontier(r, q) for r in on_it], on_it, "o", color="#666666")
    for n, rate in zip(ns, on_it):
        place = {"xytext": (-6, 4), "textcoords": "offset points", "ha": "right"}
        ax.annotate(f"best of {n}", (frontier(rate, q), rate), fontsize=8, **place)
    for row, color, marker in zip(language, show.COLORS, show.MARKERS[1:]):
        label = f"{row['run']}: {row['efficiency']:.0%}"
        ax.plot(
            row["kl"], row["passes"], marker, color=color, markersize=9, label=label
        )
    ax.set(xlabel="KL to the base model (nats)", ylabel="pass rate", ylim=(0, 1.05))
    ax.set_xlim(-0.9, None)
    ax.set_title("Above the dashed curve there is no policy")
    ax.legend(title="KL efficiency", loc="lower right")
show.figure(
    figure,
    alt="Pass rate against KL: the frontier, best-of-n on it, three runs to its right.",
    caption="Dashed: the least KL of any policy with that pass rate. Runs measured on "
    "512 sentences; best-of-n computed from the base model's pass rate.",
)

# %% [markdown]
# ## 8 · Your own update
#
# An open task. `train_table` makes 60 steps of 64 sentences on chains that you have not seen (24 words, sentences of 8), at prices from 0.7 to 1.4, by
# Adam with a rate of 0.1, and asks your loss what to follow. It gives you the words, each sentence's score, and the log-probabilities of its
# words by policy and reference; which word earns what it does not say.
#
# You are graded by the exact $J$ of the policy that comes out: which share of the way from the reference to J\* it has made, mean over hidden
# chains. $k_3$ in the loss makes a little over half.

# %% [markdown]
# ### Exercise 7 · `tilting_loss`
#
# Difficulty 4 · 15 minutes · 12 points
#
# Half of the way earns 4 points, 80% earns 4 more, 88% the last 4. Any design counts. Think of where the KL goes, whether $\beta$
# still means what it says, and whether the noise is still there at the optimum: with $\pi = \pi^*$, what is
# $r - \beta\log(\pi/\text{ref})$ of a sentence?


# %% tags=["exercise"]
def tilting_loss(words, scores, logp, ref_logp, beta):
    """words (B, T + 1), the start among them, scores (B,), logp and ref_logp
    (B, T), of which logp has a gradient -> a scalar to descend. 3 lines do."""
    ### BEGIN SOLUTION
    judged = scores - beta * (logp.detach() - ref_logp).sum(dim=1)
    return -((judged - judged.mean()) * logp.sum(dim=1)).mean()
    ### END SOLUTION


# %% tags=["grade"]
tilting_loss = lab.grade(tilting_loss)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Begin with `loss_of` of section 3, which takes the mean of eight: 64 sentences all begin at the same word.
#
# </details>
# <details><summary>Hint 2</summary>
#
# What multiplies the gradient must not have one itself: `.detach()`. At π\* the judged score of every sentence is J\*: whatever
# remains after the baseline is noise that you made.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A loss whose gradient is $-(a - \bar a)\,\nabla\log\pi$ of the sentence, with $a = r - \beta\sum_t k_1$, passes 88%. A model of the rewards,
# fitted to the scores of the batch, can do better still.
#
# </details>

# %% [markdown]
# > **On GPUs.** Sampler and trainer are then two engines, on the same cards in turn or on cards of their own, and after each
# > step the weights travel: 2 bytes a parameter in bfloat16. This lab has not been run there yet.
#
# **Takeaway**: with a known optimum an estimator cannot hide. On the chain language $k_1$ in the reward ended within 1% of J\*, the published
# loss some 10% below it. Spend KL on what is asked for, measure what it bought, and look at gold, not at the proxy.

# %%
lab.score(read="minitrain/alignment/trainer.py")
