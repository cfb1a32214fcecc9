# exercise: ring_forward
# says: all of whose keys come after all of their queries
# never looks at the sign of offset: half-blocks behind the queries are computed and masked,
# twice the work.

def ring_forward(group, places, q, kv):
    out, lse = nothing_read(q)
    for owner, (k, v) in around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            new = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
            merged = merge(out[:, :, rows], lse[:, :, rows], *new)
            out[:, :, rows], lse[:, :, rows] = merged
    return out.to(q.dtype), lse
