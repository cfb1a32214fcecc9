# right: two inner functions and a pass over a copy of the list, which skips who was preempted meanwhile
def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies = [], []
    gone = set()  # ids of who was preempted

    def left():
        return budget - sum(count for _, count in work)

    def count_of(request):
        return min(len(request.tokens) - request.computed, left())

    def preempt():
        victim = running.pop(-1)
        manager.release(victim.table)
        victim.computed = 0
        waiting.insert(0, victim)
        gone.add(id(victim))

    for request in tuple(running):
        count = count_of(request)
        while count > 0 and id(request) not in gone:
            begin = request.computed
            made = manager.grow(request.table, begin, begin + count)
            if made is not None:
                copies.extend(made)
                work.append((request, count))
                break
            preempt()

    if gone:
        return work, copies
    while waiting and len(running) < most_running and left() > 0:
        admitted = manager.admit(waiting[0].tokens, left(), waiting[0].adapter)
        if admitted is None:
            return work, copies
        request = waiting.popleft()
        request.table, request.computed = admitted
        running.append(request)
        work.append((request, count_of(request)))
    return work, copies
