# exercise: schedule
# says: leave out who computes nothing
# who waits is admitted while there are places, also when the budget is spent: work gets counts
# of 0

def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies, preempted = [], [], False
    at = 0
    while at < len(running) and budget > 0:
        request = running[at]
        count = min(len(request.tokens) - request.computed, budget)
        stop = request.computed + count
        while (more := manager.grow(request.table, request.computed, stop)) is None:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            if youngest is request:
                break
        else:
            copies += more
            work.append((request, count))
            budget -= count
        at += 1
    while not preempted and waiting and len(running) < most_running:
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
