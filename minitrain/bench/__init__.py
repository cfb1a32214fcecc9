"""Each technique beside the peer that a user would pick instead."""
