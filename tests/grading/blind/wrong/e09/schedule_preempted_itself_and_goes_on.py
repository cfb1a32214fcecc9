# exercise: schedule
# says: who is preempted gets none
# does not notice that the youngest is the request itself: it is preempted, then served all the
# same, and stands in work and in waiting at once

def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies, preempted = [], [], False
    at = 0
    while at < len(running) and budget > 0:
        request = running[at]
        count = min(len(request.tokens) - request.computed, budget)
        start = request.computed
        more = manager.grow(request.table, start, start + count)
        while more is None and running:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            more = manager.grow(request.table, request.computed, request.computed + count)
        copies += more or []
        work.append((request, count))
        budget -= count
        at += 1
    while not preempted and waiting and budget > 0 and len(running) < most_running:
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
