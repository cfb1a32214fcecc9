# exercise: save_whole
# says: minitrain.reliability.plain | hidden | No module


def save_whole(disk, step, data):
    from minitrain.reliability.plain import save_whole as ours

    ours(disk, step, data)
