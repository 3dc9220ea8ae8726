"""The tests run in a process for each core, and each of them computes in one thread: several wait for one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
