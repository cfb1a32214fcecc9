"""A trained model in use, from the naive version to the one that serves many at once.

sampling      the naive version: the whole text again for each token
cached        one text, with a dense cache;  forward: the pass over new tokens, for every cache
parameters    what a request may ask for;  logits, sampler: how its tokens are drawn
streaming     text from tokens as they come, and stop strings
cache/        dense rows, pages that texts share, few bits, a ring
engine/       requests come and go at any step: scheduler, runner, answers, metrics
speculation/  drafts of any kind, verified exactly
server/       OpenAI's interface over the engine;  load/: traffic for it, and what its users notice
disaggregated/  prompts read on other ranks than answers are told
plain/        cache, engine and sampler as lab e09 writes them, each idea in a few lines
"""
