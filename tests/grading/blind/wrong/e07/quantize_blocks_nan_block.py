# exercise: quantize_blocks
# says: 0/0 is nan
# no guard against 0/0: the codes of a block of zeros are the last level
def quantize_blocks(x, levels, size):
    flat = x.detach().flatten().float()
    n = len(flat)
    tiles = torch.nn.functional.pad(flat, (0, -n % size)).view(-1, size)
    scales = tiles.abs().amax(dim=1)
    codes = torch.bucketize(tiles / scales[:, None], (levels[1:] + levels[:-1]) / 2)
    return codes.flatten()[:n].to(torch.uint8), scales
