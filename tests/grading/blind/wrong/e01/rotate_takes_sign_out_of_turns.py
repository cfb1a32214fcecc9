# exercise: rotate
# says: changed its input
# Takes the minus sign out of `turns.sin` in place before using the usual rotate-half, so the
# table is changed for every later call; "All three are left as they were".

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    sin = turns.sin
    sin[..., :half] *= -1  # rotate-half below brings its own minus
    a, b = x[..., :half], x[..., half:]
    return x * turns.cos + torch.cat((-b, a), dim=-1) * sin
