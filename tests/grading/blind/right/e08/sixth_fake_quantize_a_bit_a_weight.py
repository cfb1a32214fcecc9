# exercise: fake_quantize
# how it differs: an autograd.Function whose mask is packed to one bit a weight
import torch


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, scale, m):
        codes = torch.round(w / scale)
        kept = codes.clamp(-m, m)
        mask = (codes == kept).flatten()
        mask = torch.nn.functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8))
        weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
        ctx.save_for_backward((mask.view(-1, 8) * weights).sum(1).to(torch.uint8))
        return kept * scale + 0.0  # a code of 0 has no sign

    @staticmethod
    def backward(ctx, dy):
        (held,) = ctx.saved_tensors
        bits = held[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
        mask = bits.flatten()[: dy.numel()].view(dy.shape).bool()
        return torch.where(mask, dy, torch.zeros_like(dy)), None, None


def fake_quantize(w, scale, bits: int):
    return StraightThrough.apply(w, scale.detach(), 2 ** (bits - 1) - 1)
