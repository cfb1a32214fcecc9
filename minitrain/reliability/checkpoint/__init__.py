"""Checkpoints: written whole or not at all, by any number of ranks, read by any other number.

placement   which boxes of which tensor a rank has         files      durable writes, with checksums
contents    all that a run consists of, as tensors         folder     step-… folders, and which stay
save        now, while training waits                      load       bit for bit, on any ranks
background  beside the training                            neighbour  in the memory of the next node
levels      the newest of memory, disk, object store

torch.distributed.checkpoint reads ours, whose names lie flat, as get_state_dict flattens them; and
a state takes over from what FSDP or DCP wrote on any ranks:

    dcp.load({"embed.weight": …, "state.embed.weight.exp_avg": …},
             storage_reader=HuggingFaceStorageReader("runs/NAME/step-00000120"))
    weights, moments = get_state_dict(state.model, state.optimizer)
    dcp.load({"model": weights, "optim": moments}, checkpoint_id=folder, no_dist=True)
    set_state_dict(state.model, state.optimizer, model_state_dict=weights,
                   optim_state_dict=moments)
"""
