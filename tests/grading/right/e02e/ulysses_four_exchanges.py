import torch


def ulysses(q, k, v, size, exchange):
    """One exchange for each of q, k and v; attention written out, one query head after another."""
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % size != 0:
        raise ValueError("ranks must divide the heads")

    def there(z, wanted):
        pieces = torch.stack([z[:, wanted(rank)] for rank in range(size)])
        return torch.cat(exchange(pieces).unbind(), dim=2)  # (B, h, T, C)

    each, group = heads // size, heads // kv_heads

    def readers(rank):
        return list(range(rank * each, rank * each + each))

    def read(rank):
        return sorted({head // group for head in readers(rank)})

    q, k, v = there(q, readers), there(k, read), there(v, read)
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    share = max(1, q.shape[1] // k.shape[1])
    out = []
    for head in range(each):
        scores = q[:, head] @ k[:, head // share].mT / q.shape[-1] ** 0.5
        out.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v[:, head // share])
    pieces = torch.stack(torch.stack(out, 1).chunk(size, dim=2))
    return torch.cat(exchange(pieces).unbind(), dim=1)
