import torch


@torch.no_grad()
def quantize_blocks(x, levels, size):
    """Counts, for each number, the borders below it; one pass over the numbers for each border."""
    n = x.numel()
    padded = torch.zeros(-(-n // size) * size)
    padded[:n] = x.flatten()
    tiles = padded.reshape(-1, size)
    scales = tiles.abs().max(dim=1).values
    codes = torch.zeros(tiles.shape, dtype=torch.uint8)
    for low, high in zip(levels[:-1], levels[1:]):
        codes += (tiles > scales[:, None] * ((low + high) / 2)).to(torch.uint8)
    zero = int((levels == 0).nonzero()[0])
    codes[scales == 0] = zero
    return codes.flatten()[:n].clone(), scales
