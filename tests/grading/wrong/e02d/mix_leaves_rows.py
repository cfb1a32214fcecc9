# exercise: mix
# says: expected shape (7, 5)


def mix(x, weights, order, counts, experts):
    answers = experts(x[order // weights.shape[1]], counts)
    return answers * weights.flatten()[order].unsqueeze(1)
