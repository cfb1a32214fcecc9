# right: parameters counted from a list of matrix shapes, FLOPs by taking from the parameter count what multiplies nothing, MFU as a rate over a rate.
import math


def matrices(config):
    """The shapes of the matrices of one layer."""
    D, C, F = config.hidden_size, config.head_size, config.ffn_size
    queries, keys = config.heads * C, config.kv_heads * C
    yield from [(D, queries), (D, keys), (D, keys), (queries, D)]
    yield from [(D, F), (D, F), (F, D)]


def norms(config):
    return (2 * config.layers + 1) * config.hidden_size


def parameter_count(config) -> int:
    per_layer = sum(math.prod(shape) for shape in matrices(config))
    tables = 1 if config.tied else 2
    vocabulary = tables * config.vocab_size * config.hidden_size
    return vocabulary + config.layers * per_layer + norms(config)


def flops_per_token(config, length: int) -> int:
    weights = parameter_count(config) - norms(config)
    if not config.tied:  # the embedding is a table of its own, which is only read
        weights -= config.vocab_size * config.hidden_size
    attention = 12 * config.layers * config.heads * config.head_size * length
    return 6 * weights + attention


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    most_tokens_per_second = peak / flops_per_token(config, length)
    return tokens_per_second / most_tokens_per_second
