"""Prefill on other ranks than decode, and the keys and values sent from one to the other.

A prompt is much compute, a token of an answer much memory traffic; in one batch each disturbs the
other: a long prompt holds up everybody's next token, and chunks of it, which hold up less, read all
weights once more each. Apart, each group of ranks is scheduled, and sized, for its own half:

    prefill rank   |prompt A |prompt B       |prompt C |          first tokens are drawn here
                        └─pages─▶   └──pages──▶            sent while the next one is computed
    decode rank    |. . . . |A A A|A A A A A|AB AB AB|         all others here

What it costs: 2·L·K·C numbers a token on the wire, and ranks that cannot help the other group out.
Its alternative: as many ranks that each do both, prompts in chunks (`serve_together`).

transfer    a request's pages on the wire, and their receipt while the engine keeps stepping
roles       the three loops: prefill, decode, and both together
emulated    steps that take a larger model's time on a device that is not here
serving     requests in, answers out: `serve_apart`, `serve_together`

Papers: Zhong et al., DistServe, arXiv 2401.09670; Patel et al., Splitwise, 2311.18677; Qin et al.,
Mooncake, 2407.00079; Agrawal et al., Sarathi-Serve, 2403.02310, for the side that chunks.
"""
