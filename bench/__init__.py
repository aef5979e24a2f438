"""Benchmarks: one command each (`python -m bench NAME`), medians over interleaved runs, raw numbers kept as JSON."""
