# exercise: merge
# says: torch.logaddexp takes the larger one out
# leaves the logarithm: exp(lse) overflows in float32 for scores beyond 88.

def merge(out, lse, new_out, new_lse):
    old, new = lse.exp(), new_lse.exp()
    total = old + new
    safe = total.masked_fill(total == 0, 1)
    both = (old[..., None] * out + new[..., None] * new_out) / safe[..., None]
    return both, total.log()
