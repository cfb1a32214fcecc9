# right: merge by a sigmoid of the difference and log1p; zigzag by the slot of each chunk, no sort
import torch


def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    top = torch.maximum(lse, new_lse)
    gap = (lse - new_lse).masked_fill(top == -torch.inf, 0)
    old, new = torch.sigmoid(gap).unsqueeze(-1), torch.sigmoid(-gap).unsqueeze(-1)
    return old * out + new * new_out, top + torch.log1p(torch.exp(-gap.abs()))


def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    chunk, rest = divmod(length, 2 * size)
    if rest:
        raise ValueError(f"cannot cut {length} tokens into {2 * size} equal chunks")
    inside = torch.arange(chunk)
    numbers = torch.arange(2 * size)
    pairs = torch.stack([numbers[:size], 2 * size - 1 - numbers[:size]], dim=1)
    places = (pairs[:, :, None] * chunk + inside).reshape(size, 2 * chunk)
    # where a chunk lies when all ranks' tokens are side by side
    slots = torch.where(numbers < size, 2 * numbers, 4 * size - 1 - 2 * numbers)
    inverse = (slots[:, None] * chunk + inside).reshape(length)
    return places, inverse
