import torch


def pack(codes):
    held = torch.zeros((codes.numel() + 1) // 2, dtype=torch.uint8)
    held += codes[0::2] * 16
    held[: codes.numel() // 2] += codes[1::2]
    return held
