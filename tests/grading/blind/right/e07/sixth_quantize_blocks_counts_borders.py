# exercise: quantize_blocks
# how it differs: block by block from split, codes counted up border by border in a uint8 tensor
# instead of a search; all under no_grad
import torch


@torch.no_grad()
def quantize_blocks(x, levels, size: int):
    numbers = x.reshape(-1).to(torch.float32)
    blocks = numbers.split(size)
    scales = torch.stack([block.abs().max() for block in blocks])
    fractions = torch.cat(
        [block / scale if scale > 0 else block for block, scale in zip(blocks, scales)]
    )
    codes = torch.zeros(len(numbers), dtype=torch.uint8, device=x.device)
    for below, over in zip(levels[:-1].float(), levels[1:].float()):
        codes += fractions > (below + over) / 2
    return codes, scales
