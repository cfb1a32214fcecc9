# right: both counts are made from a list of the weight matrices' shapes and from the norms, mfu from FLOPs of all tokens of a second
def matrices(config):
    """(rows, columns) of every weight that is multiplied, the head included."""
    D, HC = config.hidden_size, config.heads * config.head_size
    KC, F = config.kv_heads * config.head_size, config.ffn_size
    layer = [(HC, D), (KC, D), (KC, D), (D, HC), (F, D), (F, D), (D, F)]
    return layer * config.layers + [(config.vocab_size, D)]


def parameter_count(config) -> int:
    multiplied = sum(rows * columns for rows, columns in matrices(config))
    norms = [config.hidden_size] * (2 * config.layers + 1)
    # a tied head and the embedding are one matrix
    embedding = 0 if config.tied else config.vocab_size * config.hidden_size
    return multiplied + sum(norms) + embedding


def flops_per_token(config, length: int) -> int:
    forward = sum(2 * rows * columns for rows, columns in matrices(config))
    for _ in range(config.layers):
        scores = 2 * config.heads * config.head_size * length
        values = 2 * config.heads * config.head_size * length
        forward += scores + values
    backward = 2 * forward
    return forward + backward


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    done = flops_per_token(config, length) * tokens_per_second
    return done / peak
