"""What every test shares: property tests that repeat."""

from __future__ import annotations

from hypothesis import settings

# The first call of a kernel compiles it, so time says nothing; the same examples every time, so a failure repeats.
settings.register_profile("coterie", deadline=None, derandomize=True)
settings.load_profile("coterie")
