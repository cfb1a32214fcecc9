# %% [markdown]
# # The map of the course
#
# You will build the techniques that train large models in plain PyTorch, measure them, and be graded on the
# mechanism: bytes held, bytes sent, communication that overlaps with computation. A laptop with two cores is enough. An arrow
# leads from each lab to those that build on it.
#
# ![The map of the course: a box for each lab, with arrows to the labs that build on it](../labs/pictures/index.png)
#
# Run the next cell (Shift+Enter) to see it with your own points: a green bar shows the share of a lab's points that you have
# earned.

# %% tags=["setup", "picture"]
from minitrain.lab.notebook.overview import overview

overview()

# %% [markdown]
# ## The question each lab answers
#
# **Training**: on one device, on many, and with less memory.
#
# | lab | its question |
# |---|---|
# | [e00](../labs/e00_ranks_and_collectives.ipynb) | How do ranks communicate, and what does a message cost? |
# | [e01](../labs/e01_baseline.ipynb) | How well does one device train? |
# | [e02](../labs/e02_data_parallel.ipynb) | How are gradients averaged while backward is still running? |
# | [e02b](../labs/e02b_tensor_parallel.ipynb) | How is one layer split across ranks? |
# | [e02c](../labs/e02c_pipeline_parallel.ipynb) | Which ranks wait when each has some of the layers, and for how long? |
# | [e02d](../labs/e02d_expert_parallel.ipynb) | How does each token reach its experts? |
# | [e02e](../labs/e02e_context_parallel.ipynb) | How do several ranks share one long sequence? |
# | [e02f](../labs/e02f_four_dimensions.ipynb) | Which kind of parallelism goes where on a cluster? |
# | [e02g](../labs/e02g_slow_networks.ipynb) | How do you train when the network is slow, or shared with others? |
# | [e03](../labs/e03_zero.ipynb) | How do you train a model that no single rank can hold? |

# %% [markdown]
# **With less**: fewer bits, fewer activations, and layers that remember less.
#
# | lab | its question |
# |---|---|
# | [e04](../labs/e04_mixed_precision.ipynb) | How few bits does a number need in training? |
# | [e05](../labs/e05_activation_memory.ipynb) | Which activations can be discarded and recomputed? |
# | [e14](../labs/e14_architectures.ipynb) | What must a layer remember of its past, and what may it forget? |

# %% [markdown]
# **Using a trained model**: fine-tuned, compressed, served, and what it costs.
#
# | lab | its question |
# |---|---|
# | [e06](../labs/e06_lora.ipynb) | How does a model learn something new while its weights stay frozen? |
# | [e07](../labs/e07_qlora.ipynb) | How do you fine-tune a model that fits into memory only in four bits? |
# | [e13](../labs/e13_alignment.ipynb) | How does a model learn what people prefer, and how far does it drift for that? |
# | [e08](../labs/e08_quantization.ipynb) | How few bits does a trained weight need? |
# | [e09](../labs/e09_inference.ipynb) | How does one model serve many requests at once? |
# | [e09b](../labs/e09b_speculative_decoding.ipynb) | How does one pass of a model generate several tokens, with the distribution unchanged? |
# | [e10](../labs/e10_cost.ipynb) | What will a training run cost, before you rent a chip? |

# %% [markdown]
# **Around a training run**: its data, and its failures.
#
# | lab | its question |
# |---|---|
# | [e11](../labs/e11_data_pipeline.ipynb) | Which text is worth training on, and which rank reads which row? |
# | [e12](../labs/e12_reliability.ipynb) | How does a run survive failures? |
# | [e15](../labs/e15_capstone.ipynb) | What do all techniques give together, and how near to the best do you come? |

# %% [markdown]
# ## How a lab works
#
# Each idea follows the steps *why, predict, run, explain, exercise, grade*. Write your code where it says
# `# YOUR CODE HERE`, run the cell, then run the grade cell below it. If your code does not pass yet, the
# reference is used instead, so everything below still runs.

# %% [markdown]
# Your points are kept on this machine: the best result of each exercise, even if you run it again. Below every
# exercise are three folded hints; `solutions/` has each notebook with all solutions. If you teach
# with these labs, [the instructors' page](INSTRUCTORS.md) explains how to release, collect and grade them.

# %% [markdown]
# ## When something is wrong
#
# Run these commands in a terminal of JupyterLab (File → New → Terminal); in a shell of your own, use `.venv/bin/python` instead of `python`.
#
# | command or menu | effect |
# |---|---|
# | `python -m minitrain doctor` | checks whether this machine can run the course, and suggests remedies |
# | `python -m minitrain grade labs/e00_ranks_and_collectives.ipynb` | grades a saved notebook |
# | Kernel → Restart Kernel | a clean start; your points stay |
