"""Writes the numbers of all cases down: ``python tests/numbers/write.py``."""

from __future__ import annotations

import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

KEPT = Path(__file__).with_name("numbers.json")


def machine() -> dict[str, str]:
    """What the last digits depend on: libraries that compute, and the processor."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "torch")}
    return {"processor": model or platform.processor(), **packages}


def main() -> None:
    from cases import TABLES, TRAINED  # beside this script

    numbers = {name: case() for name, case in TABLES.items()}
    for name, case in TRAINED.items():
        with tempfile.TemporaryDirectory() as folder:
            numbers[name] = case(Path(folder))
    KEPT.write_text(json.dumps({"machine": machine(), "numbers": numbers}, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
