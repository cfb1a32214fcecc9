# exercise: pack
# says: changed its input
# an even number of codes is shifted in place: the input is changed

import torch


def pack(codes: torch.Tensor) -> torch.Tensor:
    if len(codes) % 2 == 1:
        codes = torch.cat([codes, codes.new_zeros(1)])
    high = codes[0::2]
    high <<= 4
    return high | codes[1::2]
