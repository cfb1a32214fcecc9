# exercise: normal_levels
# says: as many as 4 bits have

import torch


def normal_levels(bits):
    return torch.tensor([
        -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
    ])  # fmt: skip
