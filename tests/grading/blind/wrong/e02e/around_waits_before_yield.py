# exercise: around
# says: call the result of pass_on after the yield
# starts the message before the yield but also waits for it there: nothing travels while the
# caller computes.

def around(group, block):
    for step in range(group.size):
        owner = (group.rank - step) % group.size
        if step == group.size - 1:
            yield owner, block
        else:
            following = pass_on(group, block)()
            yield owner, block
            block = following
