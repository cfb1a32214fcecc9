"""Prefill on other ranks than decode, and the keys and values sent from one to the other.

A prompt is much compute, a token of an answer much memory traffic; in one batch each disturbs the
other: a long prompt holds up everybody's next token, and chunks of it, which hold up less, read all
weights once more each. Apart, each group of ranks is scheduled, and sized, for its own half:

    prefill rank   |prompt A |prompt B       |prompt C |          first tokens are told here
                        └─pages─▶   └──pages──▶            sent while the next one is computed
    decode rank    |. . . . |A A A|A A A A A|AB AB AB|         all others here

What it costs: 2·L·K·C numbers a token on the wire, and ranks that cannot help the other group out.
What it is beside: as many ranks that each do both, prompts in chunks (`roles.together`).

pages       a request's keys and values, out of one cache and into another
sending     the wire: what is announced, what follows, and that it hides behind the next prompt
inbox       who receives while the engine goes on: a thread, or on an emulated clock a merge
adoption    a request goes on in another engine, where the first one left it
unit        ranks that cut one model among themselves, and take the same steps
roles       the three loops: prefill, decode, and both together
emulated    steps that take a larger model's time on a device that is not here
serving     asks in, answers out: `serve_apart`, `serve_together`

Papers: Zhong et al., DistServe, arXiv 2401.09670; Patel et al., Splitwise, 2311.18677; Qin et al.,
Mooncake, 2407.00079; Agrawal et al., Sarathi-Serve, 2403.02310, for the side that chunks.
"""
