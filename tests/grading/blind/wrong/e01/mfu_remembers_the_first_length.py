# exercise: mfu
# says: nothing may be kept from one call to the next
# remembers the FLOPs of each config from its first call and forgets that they depend on
# `length`, so a second call with another length is wrong; the signature takes `length`, and
# `flops_per_token` depends on it.

def flops_per_token(config, length: int) -> int:
    D, L, H, C = config.hidden_size, config.layers, config.heads, config.head_size
    layer = 2 * D * C * (H + config.kv_heads) + 3 * D * config.ffn_size
    weights = L * layer + config.vocab_size * D
    return 3 * (2 * weights + 4 * L * H * C * length)


_known = {}


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    key = (
        config.vocab_size, config.hidden_size, config.layers, config.heads,
        config.kv_heads, config.head_size, config.ffn_size,
    )  # fmt: skip
    if key not in _known:
        _known[key] = flops_per_token(config, length)
    return tokens_per_second * _known[key] / peak
