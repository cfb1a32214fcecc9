# right: the mean in float64
def compress(scales, levels, size):
    scales = scales.detach()
    mean = torch.tensor(scales.double().mean().item(), dtype=torch.float32)
    left = scales.sub(mean)
    names = ("scale_codes", "scale_outer")
    return {**dict(zip(names, quantize_blocks(left, levels, size))), "scale_mean": mean}
