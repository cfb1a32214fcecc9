# right: everything in float32, from the lower side
def normal_levels(bits):
    n = 2 ** (bits - 1)
    p = 1 - 0.5 * (1 / (2 * 2**bits) + 1 / (2 * (2**bits - 1)))
    below = torch.special.ndtri(torch.linspace(1 - p, 0.5, n))
    above = torch.special.ndtri(torch.linspace(0.5, p, n + 1))[1:]
    return torch.cat([below, above]) / above[-1]
