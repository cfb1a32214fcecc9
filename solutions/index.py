# %% [markdown]
# # The map of the course
#
# You will build every technique that trains a large model out of plain PyTorch, measure it, and be graded on the
# mechanism: bytes held, bytes sent, what overlaps what. A laptop with two cores is enough. Run the next cell
# (Shift+Enter): an arrow leads from each lab to those that build on it, a green edge is what you have earned.

# %% tags=["setup"]
from minitrain.lab.notebook.overview import overview

overview()

# %% [markdown]
# ## What each lab answers
#
# **Training**: one device, then many, then less memory.
#
# | lab | its question |
# |---|---|
# | [e00](../labs/e00_ranks_and_collectives.ipynb) | How do ranks talk, and what does a message cost? |
# | [e01](../labs/e01_baseline.ipynb) | How well does one device train? |
# | [e02](../labs/e02_data_parallel.ipynb) | How are gradients averaged while the model still computes? |
# | [e02b](../labs/e02b_tensor_parallel.ipynb) | How is one layer cut over ranks? |
# | [e02c](../labs/e02c_pipeline_parallel.ipynb) | Who waits when layers stand in a row? |
# | [e02d](../labs/e02d_expert_parallel.ipynb) | How does each token reach its experts? |
# | [e02e](../labs/e02e_context_parallel.ipynb) | How do many ranks read one long text? |
# | [e02f](../labs/e02f_four_dimensions.ipynb) | Which cut goes where on a cluster? |
# | [e03](../labs/e03_zero.ipynb) | How is a model trained that no rank can hold? |
# | [e04](../labs/e04_mixed_precision.ipynb) | How few bits does a number need? |
# | [e05](../labs/e05_activation_memory.ipynb) | What may be forgotten and computed again? |

# %% [markdown]
# **A model that is there**: taught something new, made small, and paid for.
#
# | lab | its question |
# |---|---|
# | [e06](../labs/e06_lora.ipynb) | How does a model learn something new while its weights stay? |
# | [e07](../labs/e07_qlora.ipynb) | How is a model fine-tuned that fits only in four bits? |
# | [e08](../labs/e08_quantization.ipynb) | How few bits does a trained weight need? |
# | [e09](../labs/e09_inference.ipynb) | How does one model answer many readers at once? |
# | [e09b](../labs/e09b_speculative_decoding.ipynb) | How does one pass of a model write several tokens, and the same ones? |
# | [e10](../labs/e10_cost.ipynb) | What does a run cost, before it is rented? |

# %% [markdown]
# **Around a run**: what it reads, and what it survives.
#
# | lab | its question |
# |---|---|
# | [e11](../labs/e11_data_pipeline.ipynb) | What is worth reading, and who reads which row? |
# | [e12](../labs/e12_reliability.ipynb) | How does a run survive what fails? |
# | [e15](../labs/e15_capstone.ipynb) | What do all techniques give together, and how near to the best do you come? |

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
# In a terminal of JupyterLab (File → New → Terminal); in a shell of your own, `.venv/bin/python` takes the place of `python`.
#
# | in a terminal | what it does |
# |---|---|
# | `python -m minitrain doctor` | says whether this machine can run the course, and the remedy |
# | `python -m minitrain grade labs/e00_ranks_and_collectives.ipynb` | grades a saved notebook |
# | Kernel → Restart Kernel | a clean start; your points stay |
