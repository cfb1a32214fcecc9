# %% [markdown]
# # e90 · Running sums
#
# A small lab for tests: one exercise, one experiment, one question. 5 minutes, CPU is enough.

# %% tags=["setup"]
from pathlib import Path

import torch

from minitrain.lab import Lab, show, widgets

lab = Lab("e90_sums", root=Path("..").resolve())

# %% [markdown]
# **Why.** A running sum appears wherever offsets are computed from sizes.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 10
### LAB guess = None  # the last running sum of 0, 1, 2, 3, 4: your guess
### END SOLUTION
lab.predict("last_sum", guess)

# %% [markdown]
# **Exercise 1** · difficulty 1 of 5 · 2 minutes · 6 points


# %% tags=["exercise"]
def running_sum(values: torch.Tensor) -> torch.Tensor:
    """The sum so far at each element: (N,) -> (N,). About 2 lines."""
    ### BEGIN SOLUTION
    size = len(values)
    return torch.stack([values[: i + 1].sum() for i in range(size)])
    ### END SOLUTION


# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Which library function adds up along a dimension?
#
# </details>

# %% tags=["grade"]
running_sum = lab.grade(running_sum)

# %% [markdown] tags=["solution"]
# In the solution only: `torch.cumsum(values, 0)` does it in one pass.

# %%
lab.reveal("last_sum", 10, count=4)

# %% tags=["experiment"]
table = [{"n": n, "sum": float(n)} for n in range(1, lab.size("elements") + 1)]
ns, sums = [row["n"] for row in table], [row["sum"] for row in table]
show.lines(
    {"measured": (ns, sums)},
    x="elements",
    y="sum",
    theory={"measured = n": (ns, ns)},
)


# %%
def draw(ax, last):
    xs = list(range(last + 1))
    show.lines({"sum": (xs, [n * (n + 1) / 2 for n in xs])}, x="n", y="sum to n", ax=ax)


widgets.explore(draw, last=(2, 20, 5))

# %% tags=["grade"]
lab.experiment("growth", table)

# %% tags=["question"]
### BEGIN SOLUTION
largest = 8.0
### LAB largest = None  # the largest sum in your table
### END SOLUTION

# %% tags=["grade"]
lab.answer("largest", largest)

# %% tags=["nbval-check-output"]
print(lab.size("elements"), "elements")

# %%
lab.score(read="labs/kit/notebook/progress.py")
