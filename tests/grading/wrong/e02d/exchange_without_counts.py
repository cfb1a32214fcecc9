# exercise: exchange
# says: exchange the counts first

from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts):
    own = counts.view(group.size, -1)
    sent = own.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, sent)
    return all_to_all(experts(arrived, own.sum(0)), group, sent, sent)
