# exercise: suffix_array
# says: No module named | cannot import | minitrain.data
# the course's own, which the sandbox does not show


def suffix_array(symbols):
    from minitrain.data.plain import suffix_array as ours

    return ours(symbols)
