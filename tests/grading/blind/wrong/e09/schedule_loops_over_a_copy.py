# exercise: schedule
# says: who is preempted gets none, also where the loop comes to it again
# loops over a copy of running: who was preempted in this step comes up again later in the loop,
# gets blocks and work while it waits


def schedule(running, waiting, manager, budget, most_running):
    work, copies, left, preempted = [], [], budget, False
    for request in list(running):
        count = min(len(request.tokens) - request.computed, left)
        if count == 0:
            continue
        made = manager.grow(request.table, request.computed, request.computed + count)
        while made is None:
            victim = running.pop()
            manager.release(victim.table)
            victim.computed = 0
            waiting.appendleft(victim)
            preempted = True
            if victim is request:
                break
            made = manager.grow(request.table, request.computed, request.computed + count)
        if made is not None:
            work.append((request, count))
            copies += made
            left -= count
    while waiting and left and len(running) < most_running and not preempted:
        got = manager.admit(waiting[0].tokens, left, waiting[0].adapter)
        if got is None:
            break
        request = waiting.popleft()
        request.table, request.computed = got
        count = min(len(request.tokens) - request.computed, left)
        running.append(request)
        work.append((request, count))
        left -= count
    return work, copies
