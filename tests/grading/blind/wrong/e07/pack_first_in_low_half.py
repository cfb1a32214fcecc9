# exercise: pack
# says: the first code goes into the high half
# the first of two codes goes into the low half

import torch


def pack(codes: torch.Tensor) -> torch.Tensor:
    if codes.numel() % 2:
        codes = torch.cat([codes, torch.zeros(1, dtype=torch.uint8)])
    return codes[0::2] | (codes[1::2] << 4)
