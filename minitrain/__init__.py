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

A technique's room holds the naive version (`plain.py`, where a lab builds it) and the real one.
To begin: `parallel/collectives/algorithms.py`, then `parallel/ddp.py`. From a script or a cell:

    from minitrain.ranks.launch import launch
    launch(lambda group: group.all_reduce(torch.ones(2)), ranks=4)

Legend of shapes: `B batch  T tokens  D width  H heads  V vocabulary  E experts  N ranks`; a
dimension that is sharded over ranks is written `D/N`.
"""

__version__ = "0.1.0"
