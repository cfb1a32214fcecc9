# exercise: schedule
# says: the younger waits in front of the older
# where several are preempted in one step, they are put back with the youngest in front, so that
# it overtakes the older one

def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies, victims = [], [], []
    at = 0
    while at < len(running) and budget > 0:
        request = running[at]
        count = min(len(request.tokens) - request.computed, budget)
        stop = request.computed + count
        while (more := manager.grow(request.table, request.computed, stop)) is None:
            victims.append(running.pop())
            manager.release(victims[-1].table)
            victims[-1].computed = 0
            if victims[-1] is request:
                break
        else:
            copies += more
            work.append((request, count))
            budget -= count
        at += 1
    if victims:
        waiting.extendleft(reversed(victims))
        return work, copies
    while waiting and budget > 0 and len(running) < most_running:
        request = waiting[0]
        room = manager.admit(request.tokens, budget, request.adapter)
        if room is None:
            break
        request.table, request.computed = room
        running.append(waiting.popleft())
        count = min(len(request.tokens) - request.computed, budget)
        work.append((request, count))
        budget -= count
    return work, copies
