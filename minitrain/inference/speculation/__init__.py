"""Speculation: cheap drafts, which the target reads in one pass, and keeps what is its own.

    speculate(target, DraftModel(draft), [tokens], SamplingParameters(64))      of serving

    serving        an engine whose requests have drafts;  scheduler: drafts in a step's plan
    answers        a draft's tokens kept as far as the target draws them
    verification   drafts that were drawn: kept or replaced, the target's distribution exactly
    length         tokens a pass and speed-up from acceptance and costs; the best length of drafts
    proposer       the interface of everything that drafts: Asked, Draft, Proposer
    draft_model    another model, or the target in fewer bits or layers
    ngram          what followed where the text stood before
    medusa, eagle  heads upon the target's hidden vectors;  lessons: their training
    named          drafts by name, as `serve --draft` takes them
    plain          the course's own short versions, as lab e09b writes them

Shapes, beside the course's legend: `g drafted tokens  n nodes of a tree  C head size`.
"""
