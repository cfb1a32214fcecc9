# right: merge takes both shares from one softmax over the stacked pair (shares of empty rows made 0); zigzag indexes a table of chunks and scatters the inverse instead of argsort.
import torch


def merge(out, lse, new_out, new_lse):
    pair = torch.stack((lse, new_lse))  # (2, B, H, T)
    shares = pair.softmax(dim=0)
    shares = shares.masked_fill(pair == -torch.inf, 0)  # also of two empty rows
    mixed = shares[0].unsqueeze(-1) * out + shares[1].unsqueeze(-1) * new_out
    return mixed, pair.logsumexp(dim=0)


def zigzag(length, size):
    half, rest = divmod(length, 2 * size)
    if rest:
        raise ValueError(f"{length} tokens cannot be cut into {2 * size} equal chunks")
    chunks = torch.arange(length).view(2 * size, half)
    ranks = torch.arange(size)
    of_rank = torch.stack((ranks, 2 * size - 1 - ranks), dim=1)  # (N, 2)
    places = chunks[of_rank].flatten(1)
    inverse = torch.empty(length, dtype=torch.int64)
    inverse.scatter_(0, places.flatten(), torch.arange(length))
    return places, inverse
