# exercise: around
# says: and nothing to wait for
# sends the last block too: N messages, not N-1 (and one rank alone sends to itself).

def around(group, block):
    for step in range(group.size):
        wait = pass_on(group, block)
        yield (group.rank - step) % group.size, block
        block = wait()
