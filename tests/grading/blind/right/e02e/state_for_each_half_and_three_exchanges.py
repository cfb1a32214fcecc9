# right: ring_forward keeps one (out, lse) for each half of the queries and joins them at the end; ulysses exchanges q, k and v one after the other, with chunk, stack and cat instead of rearrange; merge works with the row's own maximum.
import torch
from torch.nn.functional import scaled_dot_product_attention


def pass_on(group, tensor):  # given by the notebook
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def attend(q, k, v, offset):  # given by the notebook
    exact = torch.promote_types(q.dtype, torch.float32)
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    scores = (q.to(exact) / q.shape[-1] ** 0.5) @ k.to(exact).mT  # (B, H, I, J)
    rows = torch.arange(q.shape[2])[:, None] + offset
    scores.masked_fill_(torch.arange(k.shape[2]) > rows, -torch.inf)
    lse = scores.logsumexp(dim=-1)  # (B, H, I)
    base = lse.masked_fill(lse == -torch.inf, 0)
    return scores.sub_(base[..., None]).exp_() @ v.to(exact), lse


def halves(places, rank, owner):  # given by the notebook
    half = places.shape[1] // 2
    for rows in (slice(0, half), slice(half, 2 * half)):
        for keys in (slice(0, half), slice(half, 2 * half)):
            yield rows, keys, int(places[rank, rows][0] - places[owner, keys][0])


def nothing_read(q):  # given by the notebook
    exact = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=exact)
    return torch.zeros_like(q, dtype=exact), lse


def merge(out, lse, new_out, new_lse):
    top = torch.maximum(lse, new_lse)
    top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    old, new = (lse - top).exp(), (new_lse - top).exp()
    total = old + new  # from 1 to 2, and 0 where neither read anything
    divisor = torch.where(total == 0, torch.ones_like(total), total)
    mixed = (old / divisor)[..., None] * out + (new / divisor)[..., None] * new_out
    return mixed, top + total.log()


def around(group, block):
    step = 0
    while True:
        last = step == group.size - 1
        arrival = None if last else pass_on(group, block)
        yield (group.rank - step) % group.size, block
        if last:
            return
        block, step = arrival(), step + 1


def ring_forward(group, places, q, kv):
    half = places.shape[1] // 2
    queries = q.split(half, dim=2)
    states = [nothing_read(part) for part in queries]
    for owner, block in around(group, kv):
        keys_of, values_of = block.unbind(0)
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset >= 0:
                i = rows.start // half
                k, v = keys_of[:, :, keys], values_of[:, :, keys]
                states[i] = merge(*states[i], *attend(queries[i], k, v, offset))
    out, lse = (torch.cat(parts, dim=2) for parts in zip(*states))
    return out.to(q.dtype), lse


def ulysses(q, k, v, size, exchange):
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % size != 0:
        raise ValueError(f"{heads} heads cannot be shared by {size} ranks")

    def heads_for_tokens(z):
        arrived = exchange(torch.stack(z.chunk(size, dim=1)))
        return torch.cat(arrived.unbind(0), dim=2)

    if kv_heads < size:
        k = k.repeat_interleave(size // kv_heads, dim=1)
        v = v.repeat_interleave(size // kv_heads, dim=1)
    answers = scaled_dot_product_attention(
        heads_for_tokens(q),
        heads_for_tokens(k),
        heads_for_tokens(v),
        is_causal=True,
        enable_gqa=True,
    )
    back = exchange(torch.stack(answers.chunk(size, dim=2)))
    return torch.cat(back.unbind(0), dim=1)
