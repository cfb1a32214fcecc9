# exercise: llm_int8
# says: was never called


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    outlier = x.abs().amax(0) >= threshold
    regular = x.masked_fill(outlier, 0)
    x_scale = (regular.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
    kept = (regular / x_scale).round() * x_scale + x * outlier
    return kept @ (codes * scale).t()
