"""The emulated network: links with a latency and a bandwidth, fabrics made of them, and each
rank's logical clock.
"""
