"""Bytes to and from a provider: sockets with paced reads, pools, server-sent events."""
