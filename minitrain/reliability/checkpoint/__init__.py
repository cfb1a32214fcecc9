"""Checkpoints: written whole or not at all, by any number of ranks, read by any other number.

placement   the boxes of each tensor on a rank             files      durable writes, with checksums
contents    all state of a run, as tensors                 folder     step-… folders and retention
save        synchronous: training waits                    load       bit for bit, on any ranks
background  asynchronous, beside the training              neighbour  in the memory of the next node
levels      the newest of memory, disk, object store

torch.distributed.checkpoint can read ours, whose names are flat, as get_state_dict flattens them;
and a state can be loaded from what FSDP or DCP wrote on any ranks:

    dcp.load({"embed.weight": …, "state.embed.weight.exp_avg": …},
             storage_reader=HuggingFaceStorageReader("runs/NAME/step-00000120"))
    weights, moments = get_state_dict(state.model, state.optimizer)
    dcp.load({"model": weights, "optim": moments}, checkpoint_id=folder, no_dist=True)
    set_state_dict(state.model, state.optimizer, model_state_dict=weights,
                   optim_state_dict=moments)
"""
