# right: attention goes head by head; the loss sends its two sums as one stacked message
import torch
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    queries, keys, values = (
        (x @ matrix.T).split(w.head_size, dim=-1) for matrix in (w.q, w.k, w.v)
    )
    made = []
    for q, k, v in zip(queries, keys, values):
        head = scaled_dot_product_attention(
            q[:, None], k[:, None], v[:, None], is_causal=True
        )
        made.append(head[:, 0])
    return leave(torch.cat(made, dim=-1) @ w.o.T)


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    width = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))
    places = targets - tp.rank * width
    rows = ((places >= 0) & (places < width)).nonzero()[:, 0]
    own = logits.new_zeros(len(logits))
    own = own.index_put((rows,), logits[rows, places[rows]])
    sums = (logits - top[:, None]).exp().sum(dim=-1)
    total, aim = tp.reduce(torch.stack([sums, own])).unbind()
    return (total.log() + top - aim).mean()
