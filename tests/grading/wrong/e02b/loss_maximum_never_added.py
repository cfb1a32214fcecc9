# exercise: vocabulary_loss
# says: add it to the logarithm again


def vocabulary_loss(logits, targets, tp):
    width = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))
    places = targets - tp.rank * width
    here = (places >= 0) & (places < width)
    mine = logits.gather(-1, places.clamp(0, width - 1)[:, None])[:, 0] * here
    return (total.log() - tp.reduce(mine)).mean()
