"""What every test shares: quiet figures, and property tests that repeat."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")  # no window, whatever the machine has

# The first call of a kernel compiles it, so time says nothing; the same examples every time, so a failure repeats.
settings.register_profile("coterie", deadline=None, derandomize=True)
settings.load_profile("coterie")
