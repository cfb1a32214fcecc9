# exercise: pairwise_all_to_all
# says: reads | not permitted | changes

import time

import torch


def pairwise_all_to_all(group, chunks):
    for to, chunk in enumerate(chunks):
        torch.save(chunk, f"/tmp/{group.rank}-{to}")
    time.sleep(0.2)
    return [torch.load(f"/tmp/{source}-{group.rank}") for source in range(group.size)]
