"""LoRA adapters (peft) on a transformer of random weights: shared, personal and of groups, for 50 clients on one base.

``python -m benchmarks adapters`` runs each method in a process of its own, whose peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.measure import Row, skipped

CLIENTS, GROUPS, ROWS, LENGTH, WORDS, RANK, ROUNDS = 50, 5, 16, 16, 8000, 4, 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedper": {"personal": ["*.own.*"]},
    "group-sgd": {"shared": ["*classifier*", "*.all.*"]},
}


def rows() -> tuple[Any, Any, Any, Any]:
    """Tokens (n, length), whether words of a client's topic are many, clients, and their groups."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(CLIENTS), ROWS)
    X = rng.integers(0, WORDS, (len(client), LENGTH))
    y = (X < WORDS // 2).mean(axis=1) > 0.5
    return X, y.astype(np.int64), client, client % GROUPS


def model() -> Any:
    """BERT with 11 million weights, and two adapters at once: ``all``, and ``own`` of a client or a group."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    lora = LoraConfig(r=RANK, target_modules=["query", "value"], modules_to_save=["classifier"])
    adapted = get_peft_model(BertForSequenceClassification(config), lora, adapter_name="all")
    adapted.add_adapter("own", LoraConfig(r=RANK, target_modules=["query", "value"]))
    adapted.base_model.set_adapter(["all", "own"])

    class Logits(torch.nn.Module):
        """The same, of tokens alone."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = adapted

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """Logits (n, 2)."""
            return self.bert(input_ids=tokens).logits  # type: ignore[no-any-return]

    return Logits()


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(method: str) -> dict[str, Any]:
    """A run of a method, in this process."""
    import coterie

    X, y, client, group = rows()
    made = model()
    sizes = {kind: sum(p.numel() for p in made.parameters() if p.requires_grad == kind) for kind in (True, False)}
    del made
    before = peak()
    found = coterie.fit(
        (X, y), coterie.Torch(model), client=client, group=group, method=method, **LAYOUTS[method],
        rounds={"rounds": ROUNDS, "eta": 0.05, "B": 8},
    )  # fmt: skip
    first, last = found.run.curve[0], found.run.curve[-1]
    up = (last["bytes_up"] - first["bytes_up"]) / (last["round"] - first["round"]) / CLIENTS
    own = found.module("0")
    return {
        "trained": sizes[True],
        "frozen": sizes[False],
        "up": up,
        "peak": peak(),
        "before": before,
        "kept": found.theta.nbytes,
        "adapters": len(np.unique(found.theta, axis=0)),
        "modules": sum("own" in name for name, _ in own.named_parameters()),
    }


def run() -> list[Row]:
    """A row for each method."""
    if missing := [name for name in ("peft", "transformers") if find_spec(name) is None]:
        return [skipped("LoRA on a transformer", f"{' and '.join(missing)} not installed")]
    out = []
    for method in LAYOUTS:
        found = json.loads(
            subprocess.run(
                [sys.executable, "-m", "benchmarks.adapters", method], check=True, capture_output=True, text=True
            ).stdout.splitlines()[-1]
        )
        base, adapter = 4 * found["frozen"], 4 * found["trained"]
        out.append(
            Row(
                f"LoRA on {found['frozen']:,} weights, {CLIENTS} clients, {method}",
                f"{found['up']:,.0f} bytes up a client and round",
                f"{adapter:,} bytes of adapters, {base:,} of the base",
                f"peak {found['peak'] / 1e6:,.0f} MB, {found['before'] / 1e6:,.0f} before; kept {found['kept']:,}",
                "adapters only beside one base",
                found["up"] <= adapter + 100,
            )
        )
    return out


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1])))
