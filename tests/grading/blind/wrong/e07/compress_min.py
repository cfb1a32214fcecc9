# exercise: compress
# says: that is the middle between the smallest and the largest
# the middle of the range is taken out, not the mean
def compress(scales, levels, size):
    mean = (scales.min() + scales.max()) / 2
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}
