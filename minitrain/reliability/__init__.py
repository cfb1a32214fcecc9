"""Runs that survive: what is kept, what is noticed, and how a run goes on.

checkpoint/   kept: whole or not at all, on disk, in memory, far away
events        one log of what happened, when, on which rank
spikes        a loss or gradient out of line: skip the step, roll back
own_norms     whose gradient that was         stragglers   ranks that compute slowly
hangs         ranks that no longer come       last_words   ranks that end, and who said nothing
corruption    ranks that compute wrongly      stopping  signals and notices: save, then end
restart       the same ranks again            elastic   fewer ranks, the same batches
disk          a folder, and an emulated one whose power can be cut
plain         each of these in a few lines, as lab e12 writes them
"""
