# right: one block after another, and a count of the borders passed, one border at a time
import torch


@torch.no_grad()
def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().to(torch.float32).reshape(-1)
    codes = torch.zeros(flat.numel(), dtype=torch.uint8)
    scales = []
    for start in range(0, flat.numel(), size):
        block = flat[start : start + size]
        scale = block.abs().max()
        scales.append(scale)
        fractions = block / scale if scale > 0 else block
        here = codes[start : start + size]  # a view
        for low, high in zip(levels[:-1], levels[1:]):
            here += fractions > (low + high) / 2
    return codes, torch.stack(scales) if scales else torch.zeros(0)
