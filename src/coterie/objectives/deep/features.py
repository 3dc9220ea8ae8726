"""What enters the personal layers of a net: the features that a shared backbone makes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints

ROWS = 1024  # that pass at once


def backbone_features(objective: Any, theta: Floats, personal: Sequence[str], rows: Ints) -> Floats:
    """Features (n, h) of rows under the model theta (d,): what the first layer that ``personal`` names is given.

    Of maps (n, channels, ...), which layers before it have made, the means over all places of each channel; inputs are
    flattened. A CoterieError where such a layer is not called as a module of its own.
    """
    module, taken = objective.architecture.filled(theta), list[Any]()
    names = [name for name in objective.names if any(fnmatchcase(name, pattern) for pattern in personal)]
    owners = {name.partition(".parametrizations.")[0].rpartition(".")[0] for name in names}
    for owner in owners:
        module.get_submodule(owner).register_forward_pre_hook(lambda _, given: taken.extend(given[:1]))
    out = []
    for at in range(0, len(rows), ROWS):
        X, _ = objective.rows.gather(rows[at : at + ROWS])
        taken.clear()
        with torch.no_grad(), objective.architecture.autocast():
            module(X)
        if not taken or not isinstance(taken[0], torch.Tensor):
            raise CoterieError(
                f"Layers {', '.join(names[:3])} are not called as modules of one input, so that clients cannot be "
                "compared by it: take the space model or data."
            )
        seen = taken[0].flatten(1) if taken[0] is X or taken[0].ndim < 3 else taken[0].flatten(2).mean(dim=2)
        out.append(seen.to(torch.float64).cpu().numpy())
    return np.concatenate(out) if out else np.zeros((0, 1))
