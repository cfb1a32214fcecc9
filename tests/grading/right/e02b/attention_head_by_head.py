import torch


def parallel_attention(x, w, enter, leave):
    """Written out, one head after another, with weights of its own softmax."""
    x, size = enter(x), w.head_size
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    total = 0
    for start in range(0, len(w.q), size):
        mine = slice(start, start + size)
        q, k, v = x @ w.q[mine].T, x @ w.k[mine].T, x @ w.v[mine].T
        scores = (q @ k.mT / size**0.5).masked_fill(later, -torch.inf)
        total = total + scores.softmax(-1) @ v @ w.o[:, mine].T
    return leave(total)
