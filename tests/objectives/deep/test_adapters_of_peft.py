"""Adapters of peft on a transformer of transformers, which do not come with the package."""

from __future__ import annotations

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")
from benchmarks import adapters

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(("method", "apart"), [("fedavg", 1), ("fedper", 6), ("group-sgd", 3)])
def test_adapters_alone_are_sent_and_kept(method: str, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "CLIENTS", 6)
    monkeypatch.setattr(adapters, "GROUPS", 3)
    found = adapters.one(method)
    assert found["frozen"] > 10_000_000 > 100 * found["trained"]
    personal = 4 * 6 * 2 * 2 * 384 if method == "fedper" else 0  # rank 4, 6 layers, query and value, A and B
    assert 4 * (found["trained"] - personal) <= found["up"] <= 4 * (found["trained"] - personal) + 100
    assert found["kept"] == 6 * 4 * found["trained"] and found["adapters"] == apart
