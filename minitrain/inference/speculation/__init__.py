"""Speculation: cheap drafts, which the target reads in one pass, and keeps what is its own.

    verification   drafts that were drawn: kept or replaced, the target's distribution exactly
    tree           drafts that were picked, in a chain or a tree: the target draws, and walks it
    formula        tokens a pass and speed-up, from acceptance and costs
    judging        both over a batch; chance.py is what it draws with
    writing        the loop: propose, read, judge, roll the cache back
    serving        the same for an engine's requests
    proposer       what a proposer is asked, and what it gives; the room `drafts` holds them
    length         how long a draft should be, from what was kept
    measured       acceptance and costs of a pair of models
    plain          the course's own short versions, as lab e09b writes them

Shapes, beside the course's legend: `g drafted tokens  n nodes of a tree  C head size`.
"""
