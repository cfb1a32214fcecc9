"""minitrain: every technique of efficient and scaled training, from scratch, small enough to read.

The tree is the table of contents, from the ground up; a room imports only from the rooms above its
own in this list, and `make check` holds that:

    measure       memory, clocks, FLOPs, bytes sent
    model         the Transformer: attention, experts, RoPE; checkpoints of the Hugging Face hub
    optimizers    AdamW, SGD, Lion, Adafactor, 8-bit Adam; groups, clipping, learning rates
    network       emulated links and fabrics, and each rank's logical clock
    precision     loss scaling, master weights, FP8 and block formats
    data          a corpus of known entropy, real texts, tokenizer, packing, a loader that resumes
    ranks         `launch` and `Group`: processes that talk, and that say where they hang
    training      the loop: loss, step, state, report
    memory        recomputation, its placement, offload, a paged optimizer
    reliability   checkpoints; spikes, slow, hung and corrupt ranks; restarts
    parallel      DDP, meshes; collectives/ zero/ tensor/ pipeline/ expert/ context/, and all of
                  them at once in hybrid/
    quantization  weights in 8 to 2 bits: formats, GPTQ, AWQ, SmoothQuant, rotation, packed kernels
    finetuning    LoRA and its kin, soft prompts, PEFT's files; many adapters in one batch
    inference     sampling; caches of keys and values; an engine that serves many at once
    planning      memory, time, money and energy of a run, before it is paid for
    apps          python -m minitrain ...: train, finetune, serve, watch, plan, ...

Beside the package: labs/kit (notebooks of it), tests/grader and tests/bench, which are imported as
`minitrain.lab` and `minitrain.bench`; no technique knows them.

A technique's file has the naive version on top and the real one below; `plain.py` holds the naive
ones where both are long. To begin: `parallel/collectives/algorithms.py`, then `parallel/ddp.py`.

Doors, for a script or a cell; any nn.Module of yours will do:

    from minitrain.ranks.launch import launch                 launch(f, ranks=4): f(group) on four
    from minitrain.parallel import DDP                        gradients averaged while they come
    from minitrain.parallel.zero import Zero, Zero3           states, gradients, weights sharded
    from minitrain.memory import checkpoint, Offload          activations recomputed, states away
    from minitrain.precision import LossScaler, MasterWeights
    from minitrain.finetuning import adapt, save_adapter      LoRA and its kin, in PEFT's files
    from minitrain.quantization import quantize_model         8 to 2 bits; named("int4")
    from minitrain.inference import Engine, generate          many requests at once, paged cache
    from minitrain.model import load_pretrained               a folder of the Hugging Face hub
    from minitrain.reliability import save_checkpoint, load_checkpoint
    from minitrain.data import Loader, make_corpus, pack
    from minitrain.planning import estimate, make_run         seconds, memory and money of a run

Legend of shapes: `B batch  T tokens  D width  H heads  V vocabulary  E experts  N ranks`; a
dimension that is sharded over ranks is written `D/N`.
"""

import os

# A thread of GNU OpenMP that waits for the others spins so many rounds before it sleeps. Its own
# default, 300,000, makes a machine with other work on it some ten times slower; this costs a quiet
# one nothing that is measurable. It is read when torch is first imported, here or in a child.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"
