# exercise: schedule
# says: this step has preempted a request, and then admitted one
# a step that preempted somebody goes on to admit who waits (the very one it preempted)


def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies, left, preempted, i = [], [], budget, False, 0
    while i < len(running) and left > 0:
        request = running[i]
        count = min(len(request.tokens) - request.computed, left)
        while True:
            made = manager.grow(request.table, request.computed, request.computed + count)
            if made is not None:
                work.append((request, count))
                copies += made
                left -= count
                i += 1
                break
            victim = running.pop()
            manager.release(victim.table)
            victim.computed = 0
            waiting.appendleft(victim)
            preempted = True
            if victim is request:
                break
    while waiting and left > 0 and len(running) < most_running:
        request = waiting[0]
        got = manager.admit(request.tokens, left, request.adapter)
        if got is None:
            break
        running.append(waiting.popleft())
        request.table, request.computed = got
        count = min(len(request.tokens) - request.computed, left)
        work.append((request, count))
        left -= count
    return work, copies
