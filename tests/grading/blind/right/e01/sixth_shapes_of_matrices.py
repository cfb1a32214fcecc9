# exercise: flops_per_token
# differs: lists the shape of every matrix and sums over the list; the schedule with its two
#   branches as clamped factors
import math


def _layer_matrices(config):
    D, C = config.hidden_size, config.head_size
    for heads in (config.heads, config.kv_heads, config.kv_heads, config.heads):
        yield D, heads * C
    for _ in ("gate", "up", "down"):
        yield D, config.ffn_size


def parameter_count(config) -> int:
    D = config.hidden_size
    norms = D * (2 * config.layers + 1)
    tables = (1 + (not config.tied)) * config.vocab_size * D
    return config.layers * sum(map(math.prod, _layer_matrices(config))) + norms + tables


def flops_per_token(config, length: int) -> int:
    products = [*_layer_matrices(config)]
    # a query against all keys, and the weights against all values
    products += 2 * [(config.heads * config.head_size, length)]
    forward = config.layers * sum(2 * math.prod(p) for p in products)
    forward += 2 * config.hidden_size * config.vocab_size
    backward = 2 * forward
    return forward + backward


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return (step + 1) / warmup * peak
    t = min(1.0, (step - warmup) / (total - warmup))
    share = 0.5 + 0.5 * math.cos(t * math.pi)
    return share * peak + (1 - share) * floor


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    seconds_a_token_at_peak = flops_per_token(config, length) / peak
    return seconds_a_token_at_peak * tokens_per_second
