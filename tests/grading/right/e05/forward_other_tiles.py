import torch


def tiled_forward(q, k, v, mask):
    """Taller, narrower tiles: in a window a row may read nothing of the first ones."""
    outs, lses = [], []
    for top in range(0, q.shape[2], 256):
        rows = slice(top, min(top + 256, q.shape[2]))
        queries, keys = q[:, :, rows] * q.shape[-1] ** -0.5, mask.keys(rows, k.shape[2])
        greatest = mass = total = None
        for left in range(keys.start, keys.stop, 64):
            columns = slice(left, min(left + 64, keys.stop))
            scores = queries @ k[:, :, columns].transpose(-1, -2)
            readable = mask.tile(rows, columns, scores.device)
            if readable is not None:
                scores.masked_fill_(readable.logical_not(), -torch.inf)
            new = scores.amax(-1, keepdim=True)
            new = new if greatest is None else torch.maximum(new, greatest)
            base = new.clamp(min=torch.finfo(new.dtype).min)
            weights = (scores - base).exp()
            added = weights.sum(-1, keepdim=True), weights @ v[:, :, columns]
            if greatest is None:
                mass, total = added
            else:
                shrink = (greatest - base).exp()
                mass, total = mass * shrink + added[0], total * shrink + added[1]
            greatest = new
        outs.append(total / mass)
        lses.append((greatest + mass.log()).squeeze(-1))
    return torch.cat(outs, dim=2), torch.cat(lses, dim=2)
