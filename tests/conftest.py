"""What every test shares: property tests that repeat, and one thread a process, as tests run in several."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read where torch is loaded, by commands that tests start, too

from hypothesis import settings

# The first call of a kernel compiles it, so time says nothing; the same examples every time, so a failure repeats.
settings.register_profile("coterie", deadline=None, derandomize=True)
settings.load_profile("coterie")
