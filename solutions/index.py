# %% [markdown]
# # The map of the course
#
# You will build every technique that trains a large model out of plain PyTorch, measure it, and
# be graded on the mechanism: bytes held, bytes sent, what overlaps what. A laptop with two cores
# is enough. These are the pictures you will have made:

# %% [markdown]
# <table>
# <tr>
# <td width="33%"><a href="../labs/e00_ranks_and_collectives.ipynb"><img width="300" src="../labs/pictures/e00_ranks_and_collectives.png" alt="Lab e00: bandwidth of an all-reduce against message size, this laptop beside an A100 and an H200 machine"></a></td>
# <td width="33%"><a href="../labs/e01_baseline.ipynb"><img width="300" src="../labs/pictures/e01_baseline.png" alt="Lab e01: the loss of a small model falling toward the floor that no model can beat"></a></td>
# <td width="33%"><a href="../labs/e02_data_parallel.ipynb"><img width="300" src="../labs/pictures/e02_data_parallel.png" alt="Lab e02: scaling efficiency from one to eight ranks over four fabrics"></a></td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e00_ranks_and_collectives.ipynb">e00</a> → how ranks talk, and what a message costs</td>
# <td width="33%"><a href="../labs/e01_baseline.ipynb">e01</a> → one model, trained and metered on one device</td>
# <td width="33%"><a href="../labs/e02_data_parallel.ipynb">e02</a> → the same model on many, its traffic hidden</td>
# </tr>
# </table>

# %% [markdown]
# Then ways to cut one model over ranks, in any order:
#
# <table>
# <tr>
# <td width="33%"><a href="../labs/e02b_tensor_parallel.ipynb"><img width="300" src="../labs/pictures/e02b_tensor_parallel.png" alt="Lab e02b: efficiency of a tensor-parallel layer from 1 to 16 ranks, inside a node and past it"></a></td>
# <td width="33%"><a href="../labs/e02c_pipeline_parallel.ipynb"><img width="300" src="../labs/pictures/e02c_pipeline_parallel.png" alt="Lab e02c: the charts of four pipeline schedules one under another, and how idle each is"></a></td>
# <td width="33%"><a href="../labs/e02d_expert_parallel.ipynb"><img width="300" src="../labs/pictures/e02d_expert_parallel.png" alt="Lab e02d: who got the tokens while three routers were trained"></a></td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e02b_tensor_parallel.ipynb">e02b</a> → one layer on many</td>
# <td width="33%"><a href="../labs/e02c_pipeline_parallel.ipynb">e02c</a> → layers in a row, and their bubble</td>
# <td width="33%"><a href="../labs/e02d_expert_parallel.ipynb">e02d</a> → experts on many ranks, evenly fed</td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e02e_context_parallel.ipynb"><img width="300" src="../labs/pictures/e02e_context_parallel.png" alt="Lab e02e: which rank computes which block of a causal mask, and when"></a></td>
# <td width="33%"><a href="../labs/e02f_four_dimensions.ipynb"><img width="300" src="../labs/pictures/e02f_four_dimensions.png" alt="Lab e02f: eight ranks on two nodes, placed badly and placed well"></a></td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e02e_context_parallel.ipynb">e02e</a> → one long text on many ranks</td>
# <td width="33%"><a href="../labs/e02f_four_dimensions.ipynb">e02f</a> → all of these at once</td>
# </tr>
# </table>

# %% [markdown]
# And ways to make it fit, and to know what it costs:
#
# <table>
# <tr>
# <td width="33%"><a href="../labs/e03_zero.ipynb"><img width="300" src="../labs/pictures/e03_zero.png" alt="Lab e03: bytes a rank holds under data parallelism and the three stages of ZeRO, measured and predicted"></a></td>
# <td width="33%"><a href="../labs/e04_mixed_precision.ipynb"><img width="300" src="../labs/pictures/e04_mixed_precision.png" alt="Lab e04: one model trained in eight number formats, over the floor"></a></td>
# <td width="33%"><a href="../labs/e05_activation_memory.ipynb"><img width="300" src="../labs/pictures/e05_activation_memory.png" alt="Lab e05: peak bytes of attention against length, whole and in tiles"></a></td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e03_zero.ipynb">e03</a> → each rank keeps a part</td>
# <td width="33%"><a href="../labs/e04_mixed_precision.ipynb">e04</a> → half the bytes of a number, or a quarter</td>
# <td width="33%"><a href="../labs/e05_activation_memory.ipynb">e05</a> → forget, and compute again</td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e10_cost.ipynb"><img width="300" src="../labs/pictures/e10_cost.png" alt="Lab e10: million dollars against days for a 70B model, every offer for four chips, and the Pareto front"></a></td>
# </tr>
# <tr>
# <td width="33%"><a href="../labs/e10_cost.ipynb">e10</a> → what a run costs</td>
# </tr>
# </table>

# %% [markdown]
# Run the next cell (Shift+Enter) for your points so far and what to do next.

# %% tags=["setup"]
from minitrain.lab.notebook.overview import overview

overview()

# %% [markdown]
# ## How a lab works
#
# Each idea goes *why, predict, run, explain, exercise, grade*. Write your code where it says
# `# YOUR CODE HERE`, run the cell, run the grade cell below it. Where yours does not pass yet, the
# reference stands in, so everything below still runs.

# %% [markdown]
# Your points are kept on this machine, the best of each exercise, whatever you run again. Three
# folded hints stand under every exercise; a worked notebook lies in `solutions/`. If you teach
# with these labs, [the instructor's page](INSTRUCTORS.md) says how to release, collect and grade.

# %% [markdown]
# ## When something is wrong
#
# | in a terminal | what it does |
# |---|---|
# | `python -m minitrain doctor` | says whether this machine can run the course, and the remedy |
# | `python -m minitrain grade labs/e00_ranks_and_collectives.ipynb` | grades a saved notebook |
# | Kernel → Restart Kernel | a clean start; your points stay |
