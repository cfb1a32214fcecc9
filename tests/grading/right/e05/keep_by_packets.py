import torch

WANTED = {torch.ops.aten.mm, torch.ops.aten.addmm}


def keep(op):
    packet = op.overloadpacket
    attention = "scaled_dot_product" in packet.__name__ and "backward" not in packet.__name__
    return packet in WANTED or attention
