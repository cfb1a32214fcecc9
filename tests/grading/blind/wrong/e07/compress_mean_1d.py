# exercise: compress
# says: one number for all scales
# the mean has shape (1,)
def compress(scales, levels, size):
    mean = scales.mean(dim=0, keepdim=True)
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}
