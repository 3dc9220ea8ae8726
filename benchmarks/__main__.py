"""Run all benchmarks, or those named."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.measure import Row, show

NAMES = (
    "references",
    "against_lme4",
    "against_gpboost",
    "million",
    "devices",
    "cost",
    "rounds",
    "paper_001",
    "noisy_quadratic",
    "main_clients",
    "hospitals",
    "total_variation",
    "network_prox",
    "network_lasso",
    "digits_network",
    "bytes",
    "deep",
    "groups",
    "adapters",
    "ray",
)


def main() -> int:
    """Print the table; 1 if a goal is missed."""
    rows: list[Row] = []
    for name in sys.argv[1:] or NAMES:
        rows += import_module(f"benchmarks.{name}").run()
    show(rows)
    return int(any(r.met is False for r in rows))


if __name__ == "__main__":
    sys.exit(main())
