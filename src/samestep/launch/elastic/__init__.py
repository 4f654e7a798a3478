"""Torch's elastic agents, once for each rank, and the host that outlives them.

The only part of `launch` that knows torch. Nothing imports it: it runs in processes of its own, and
`host.py` is where they begin.
"""
