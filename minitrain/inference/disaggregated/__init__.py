"""Disaggregated serving: prefill and decode on different ranks, with the KV cache sent across.

A prompt is compute-bound, decoding is memory-bound; in one batch each disturbs the other: a long
prompt delays everybody's next token, and chunked prefill, which delays them less, reads all weights
again for each chunk. Separated, each group of ranks is scheduled and sized for its own half:

    prefill rank   |prompt A |prompt B       |prompt C |          draws first tokens
                        └─pages─▶   └──pages──▶            sent while the next one is computed
    decode rank    |. . . . |A A A|A A A A A|AB AB AB|         draws all others

The cost: 2·L·K·C numbers a token on the wire, and ranks that cannot help out the other group.
The alternative: as many ranks that each do both, with chunked prefill (`serve_together`).

transfer    a request's pages on the wire, and their receipt while the engine keeps stepping
roles       the three loops: prefill, decode, and both together
emulated    steps timed as a larger model's on an emulated device
serving     requests in, answers out: `serve_apart`, `serve_together`

Papers: Zhong et al., DistServe, arXiv 2401.09670; Patel et al., Splitwise, 2311.18677; Qin et al.,
Mooncake, 2407.00079; Agrawal et al., Sarathi-Serve, 2403.02310, for chunked prefill.
"""
