"""Rules by name, as they may be asked for."""

from __future__ import annotations

from coterie.errors import CoterieError
from coterie.methods.collaboration.pairs import Rules
from coterie.methods.collaboration.rules.adaptive import Adaptive
from coterie.methods.collaboration.rules.robust import Clipped, Trimmed
from coterie.methods.collaboration.rules.trust import Trust


def rules(name: str, corrected: bool) -> Rules | None:
    """What "mean", "trimmed", "clipped", "trust" and "adaptive" are; None where gradients are simply added up.

    "trust" drops harmful collaborators and clips the others; "adaptive" drops them and weighs the others by their bias
    and noise so far. A CoterieError for "adaptive" with bias correction, whose c cannot follow weights that change.
    """
    if name == "adaptive" and corrected:
        raise CoterieError(
            "Bias correction averages past biases, which weights that change would make wrong: take rule 'trust', or "
            "the method 'weighted-averaging'."
        )
    named: dict[str, Rules | None] = {
        "mean": None,
        "trimmed": Rules(combine=Trimmed(0.2)),
        "clipped": Rules(combine=Clipped()),
        "trust": Rules([Trust(direction=not corrected)], Clipped()),
        "adaptive": Rules([Trust(direction=True), Adaptive("bias")]),
    }
    return named[name]
