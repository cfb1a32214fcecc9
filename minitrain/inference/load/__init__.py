"""Traffic for an engine or a server, and what its users notice.

workload    requests: Poisson arrivals, lengths from a range or a trace, beginnings that are shared
offered     a server is asked at those times, over HTTP, whether it keeps up or not
goodput     percentiles of what users waited for, and how many of them were served in time
"""
