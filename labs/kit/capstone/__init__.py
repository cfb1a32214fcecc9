"""The tracks of lab e15: cases, clocks that the same submission always reads alike, and scores.

plans        the fastest plan of a model on a cluster    pipelines   a schedule, its lower bound
incidents    54 days with failures and slow nodes          reference   the course's own submissions
board        the scores of a class in one table    cases       the public ones

A score is 100 times the best possible over what was reached, from 0 to 100. No clock of this
machine is read, so it is the same everywhere to the last digit.
"""
