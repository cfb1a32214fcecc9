# exercise: normal_levels
# says: the mean of the two quantiles
# the mean of the two quantiles is taken, not of the probabilities
def normal_levels(bits):
    n = 2 ** (bits - 1)
    q = torch.special.ndtri(torch.tensor([1 - 1 / (4 * n), 1 - 1 / (2 * (2 * n - 1))])).mean()
    p = torch.special.ndtr(q).item()
    up = torch.special.ndtri(torch.linspace(p, 0.5, n + 1)[:-1])
    down = torch.special.ndtri(torch.linspace(p, 0.5, n)[:-1])
    return torch.cat([-down, torch.zeros(1), up.flip(0)]) / up.max()
