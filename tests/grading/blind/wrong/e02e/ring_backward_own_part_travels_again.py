# exercise: ring_backward
# says: and nothing to wait for
# the own part is sent at step 0 and goes all the way round: N messages of gradients, not N-1.

def ring_backward(group, kv, gradients):
    dq, wait = 0, None
    for owner, block in around(group, kv):
        dq_part, part = gradients(owner, block)
        dq = dq + dq_part
        if wait is not None:
            part = part + wait()
        wait = pass_on(group, part)
    return dq, wait()
