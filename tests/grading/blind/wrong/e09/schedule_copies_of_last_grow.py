# exercise: schedule
# says: the copies are
# only the copies of the last grow are returned, those before are overwritten

def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies, preempted, at = [], [], False, 0
    while at < len(running) and budget > 0:
        request = running[at]
        count = min(len(request.tokens) - request.computed, budget)
        made = manager.grow(request.table, request.computed, request.computed + count)
        if made is None:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            continue
        copies = made
        work.append((request, count))
        budget -= count
        at += 1
    while not preempted and waiting and budget > 0 and len(running) < most_running:
        request = waiting[0]
        room = manager.admit(request.tokens, budget, request.adapter)
        if room is None:
            break
        running.append(waiting.popleft())
        request.table, request.computed = room
        count = min(len(request.tokens) - request.computed, budget)
        work.append((request, count))
        budget -= count
    return work, copies
