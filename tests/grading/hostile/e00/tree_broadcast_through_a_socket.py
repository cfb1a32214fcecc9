# exercise: tree_broadcast
# says: opens a socket

import socket


def tree_broadcast(group, tensor, root):
    end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end.bind(f"\0rank {group.rank}")
    return tensor
