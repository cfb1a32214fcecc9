# exercise: quantize_blocks
# differs: no padding (whole blocks and a shorter rest), zero blocks by torch.where, codes counted
# border by border; pack by a sum of columns
import torch


def _block_scales(flat, size):
    whole = flat.numel() // size * size
    parts = [flat[:whole].reshape(-1, size).abs().amax(dim=1)]
    if whole < flat.numel():
        parts.append(flat[whole:].abs().max().reshape(1))
    return torch.cat(parts)


@torch.no_grad()
def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().reshape(-1).to(torch.float32)
    scales = _block_scales(flat, size)
    each = scales.repeat_interleave(size)[: flat.numel()]
    fractions = flat / torch.where(each == 0, torch.ones_like(each), each)
    codes = torch.zeros(flat.numel(), dtype=torch.uint8)
    for lower, upper in zip(levels[:-1].tolist(), levels[1:].tolist()):
        codes += fractions > (lower + upper) / 2
    return codes, scales


def pack(codes: torch.Tensor) -> torch.Tensor:
    pairs = codes.new_zeros((len(codes) + 1) // 2, 2)
    pairs.view(-1)[: len(codes)] = codes
    return pairs[:, 0] * 16 + pairs[:, 1]
