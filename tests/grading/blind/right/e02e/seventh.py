# a reader's own answers, from the notebook alone
import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.logaddexp(lse, new_lse)
    # a row that read nothing: subtract 0, so that exp(-inf - 0) is 0
    base = both.masked_fill(both == -torch.inf, 0)
    share = (lse - base).exp()[..., None]
    new_share = (new_lse - base).exp()[..., None]
    return share * out + new_share * new_out, both


def around(group, block: torch.Tensor):
    for step in range(group.size):
        owner = (group.rank - step) % group.size
        coming = None
        if step < group.size - 1:
            coming = pass_on(group, block)
        yield owner, block
        if coming is not None:
            block = coming()


def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if length % (2 * size):
        raise ValueError(f"{2 * size} chunks do not divide {length} tokens")
    chunks = torch.arange(length).reshape(2 * size, length // (2 * size))
    early = chunks[:size]
    late = chunks[size:].flip(0)
    places = torch.cat((early, late), dim=1)
    inverse = places.flatten().argsort()
    return places, inverse


def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = nothing_read(q)
    for owner, (k, v) in around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset < 0:
                continue
            found = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
            merged = merge(out[:, :, rows], lse[:, :, rows], *found)
            out[:, :, rows], lse[:, :, rows] = merged
    return out.to(q.dtype), lse


def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    dq, own, arriving = None, None, None
    for owner, block in around(group, kv):
        dq_part, part = gradients(owner, block)
        dq = dq_part if dq is None else dq + dq_part
        if owner == group.rank:
            own = part  # stays at home until the others' sum is back
            continue
        if arriving is not None:
            part = part + arriving()
        arriving = pass_on(group, part)
    if arriving is not None:
        own = own + arriving()
    return dq, own


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % size:
        raise ValueError(f"{size} ranks do not divide {heads} query heads")
    # fewer key heads than ranks: each goes to all ranks that read it
    copies = max(1, size // kv_heads)
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    widths = [piece.shape[2] for piece in pieces]
    arrived = exchange(torch.cat(pieces, dim=2))
    arrived = rearrange(arrived, "n b h t c -> b h (n t) c")
    q, k, v = arrived.split(widths, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    back = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size))
    return rearrange(back, "n b h t c -> b (n h) t c")
