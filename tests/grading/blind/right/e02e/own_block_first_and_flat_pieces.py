# right: ring_backward takes its own block off the ring before the loop and adds in place; ulysses sends one flat row a rank, no einops
import torch
from torch.nn.functional import scaled_dot_product_attention

if "pass_on" not in globals():  # given in the notebook

    def pass_on(group, tensor):
        arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
        leaving = group.isend(tensor, (group.rank + 1) % group.size)
        return lambda: (leaving.wait(), arriving.wait())[1]


if "around" not in globals():  # an earlier exercise, right

    def around(group, block):
        for step in range(group.size):
            coming = pass_on(group, block) if step + 1 < group.size else None
            yield (group.rank - step) % group.size, block
            if coming is not None:
                block = coming()


def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = around(group, kv)
    dq, home = gradients(*next(blocks))
    on_the_way = []
    for owner, block in blocks:
        more, part = gradients(owner, block)
        dq += more
        if on_the_way:
            part += on_the_way.pop()()
        on_the_way.append(pass_on(group, part))
    if on_the_way:
        home += on_the_way.pop()()
    return dq, home


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    batch, heads, tokens, width = q.shape
    if heads % size:
        raise ValueError(f"{heads} query heads on {size} ranks")
    own, own_kv = heads // size, max(1, k.shape[1] // size)
    rows = []
    for rank in range(size):
        first = rank * k.shape[1] // size
        wanted = (
            q[:, rank * own : (rank + 1) * own],
            k[:, first : first + own_kv],
            v[:, first : first + own_kv],
        )
        rows.append(torch.cat([z.reshape(-1) for z in wanted]))
    arrived = exchange(torch.stack(rows))  # (N, numbers)
    counts = [batch * n * tokens * width for n in (own, own_kv, own_kv)]
    whole = [
        torch.cat(part.reshape(size, batch, -1, tokens, width).unbind(0), dim=2)
        for part in arrived.split(counts, dim=1)
    ]
    out = scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
    back = exchange(torch.stack(out.split(tokens, dim=2)))
    return torch.cat(back.unbind(0), dim=1)
