"""Checkpoints: written whole or not at all, by any number of ranks, read by any other number.

placement   which boxes of which tensor a rank has         files      durable writes, with checksums
contents    all that a run consists of, as tensors         folder     step-… folders: begin, commit
save        now, while training waits                      load       bit for bit, on any ranks
background  beside the training                            keep       which ones stay
neighbour   in the memory of the next node                 remote     in an object store
levels      the newest of all of these                     stored     boxes in files
torch_files torch.distributed.checkpoint's, read; and how it reads ours
"""
