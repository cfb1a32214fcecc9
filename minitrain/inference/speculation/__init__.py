"""Speculative decoding: cheap drafts, which the target verifies in one pass.

    speculate(target, DraftModel(draft), [tokens], SamplingParameters(64))      of serving

    serving        an engine whose requests have drafts;  scheduler: drafts in a step's plan
    answers        accepts a draft's tokens as long as the target draws the same
    verification   sampled drafts: accepted or replaced, with exactly the target's distribution
    length         tokens per pass and speed-up from acceptance and costs; the best draft length
    proposer       the interface of everything that drafts: Asked, Draft, Proposer
    draft_model    another model, or the target with fewer bits or layers
    ngram          continuations of earlier occurrences in the text
    medusa, eagle  heads on the target's hidden vectors;  lessons: their training
    named          drafts by name, as `serve --draft` takes them
    plain          the course's own short versions, as lab e09b writes them

Shapes, beside the course's legend: `g drafted tokens  n nodes of a tree  C head size`.
"""
