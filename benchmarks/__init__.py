"""Timings as ratios, both sides in one run: ``python -m benchmarks [name ...]``."""
