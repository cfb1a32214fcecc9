"""minitrain: every technique of efficient and scaled training, from scratch, small enough to read.

The tree is the table of contents, from the ground up; a package imports only from those above it in
this list, which `make check` enforces:

    measure       memory, clocks, FLOPs, bytes sent
    model         the Transformer: attention, experts, RoPE; checkpoints of the Hugging Face hub;
                  in architectures/ Mamba-2, DeltaNet, latent attention and hybrids of them
    optimizers    AdamW, SGD, Lion, Adafactor, Muon, 8-bit Adam; groups, clipping, schedules
    network       emulated links and fabrics, and each rank's logical clock
    precision     loss scaling, master weights, FP8 and block formats
    data          a corpus of known entropy, real texts, tokenizer, packing, a loader that resumes
    ranks         `launch` and `Group`: communicating processes that report where they hang
    training      the loop: loss, step, state, report
    memory        recomputation, its placement, offload, a paged optimizer
    reliability   checkpoints; loss spikes; slow, hung and corrupt ranks; restarts
    monitoring    each step's sample: files, TensorBoard, Prometheus; alert rules; power and heat
    parallel      DDP, meshes; collectives/ zero/ tensor/ pipeline/ expert/ context/, several of
                  them at once in hybrid/; compressed/ for slow networks
    quantization  weights in 8 to 2 bits: formats, GPTQ, AWQ, SmoothQuant, rotation, packed kernels
    finetuning    LoRA and its variants, soft prompts, PEFT's files; many adapters per batch
    inference     sampling; KV caches; an engine that batches many requests
    alignment     rewards and preferences: PPO, GRPO, DPO, each beside a known optimum
    planning      memory, time, cost and energy of a run, estimated in advance
    apps          python -m minitrain ...: train, finetune, serve, watch, plan, ...

Beside the package: labs/kit (its notebooks), tests/grader and tests/bench, imported as
`minitrain.lab` and `minitrain.bench`; no technique imports them.

A technique's file has the naive version on top and the real one below; `plain.py` holds the naive
ones where both are long. To begin: `parallel/collectives/algorithms.py`, then `parallel/ddp.py`.

Main entry points, for a script or a cell. Quantization and inference take the Transformer that
`load_pretrained` returns, the others any nn.Module:

    from minitrain.ranks.launch import launch                 launch(f, ranks=4): f(group) on four
    from minitrain.parallel import DDP                        gradients averaged during backward
    from minitrain.parallel.zero import Zero, Zero3           states, gradients, weights sharded
    from minitrain.parallel.compressed import DiLoCo, PowerSGD, Quantized      fewer bytes sent
    from minitrain.memory import checkpoint, Offload          activations recomputed or offloaded
    from minitrain.precision import LossScaler, MasterWeights
    from minitrain.finetuning import adapt, save_adapter      LoRA and its variants, in PEFT's files
    from minitrain.quantization import quantize_model         8 to 2 bits; named("int4")
    from minitrain.inference import Engine, generate          many requests at once, paged cache
    from minitrain.model import load_pretrained               a folder of the Hugging Face hub
    from minitrain.reliability import save_checkpoint, load_checkpoint
    from minitrain.model.architectures import build_hybrid, hybrid_config
    from minitrain.data import Loader, make_corpus, pack
    from minitrain.alignment import align, final_facts        GRPO, PPO, … on a checked reward
    from minitrain.planning import estimate, make_run         seconds, memory and money of a run

Legend of shapes: `B batch  T tokens  D width  H heads  V vocabulary  E experts  N ranks`; a
dimension that is sharded over ranks is written `D/N`.
"""

import os

# A waiting thread of GNU OpenMP spins this many rounds before it sleeps. The default, 300,000,
# makes a busy machine some ten times slower; this value costs an idle one nothing measurable. It is
# read when torch is first imported, here or in a child.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"
