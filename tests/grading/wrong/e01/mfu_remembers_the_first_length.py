# exercise: mfu
# says: nothing may be kept from one call to the next

FLOPS = []


def mfu(tokens_per_second, config, length, peak):
    if not FLOPS:
        FLOPS.append(flops_per_token(config, length))
    return tokens_per_second * FLOPS[0] / peak
