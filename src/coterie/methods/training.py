"""Methods whose clients train at home, by name: their classes, what they are, and default hyper-parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, nearest
from coterie.methods.trainer import EVERYTHING, STEPS, Trainer
from coterie.methods.user_defined_method import user_defined_method

_WHOLE: dict[str, Any] = {"B": 0, "personal": (), "up": "none", "down": "none"}
_PASSES = STEPS | {"E": 1}
_GROUPED = _PASSES | {"own": "averaged", "weigh": "rows"}
_EVERY = (
    Trainer("local", "fedavg:FedAvg", "every client alone", fixed_options={"personal": EVERYTHING}),
    Trainer("pooled", "fedavg:FedAvg", "one client that holds all rows", pool_rows=True),
    Trainer("fedavg", "fedavg:FedAvg", "one model, the average of clients' own steps"),
    Trainer("fedavg-finetune", "fedavg:FedAvg", "the same, then steps of each client alone", STEPS | {"finetune": 20}),
    Trainer(
        "dp-sgd", "dp_sgd:DPSGD", "clipped gradients of rows, for their privacy", {"eta": 0.1}, fixed_options=_WHOLE
    ),
    Trainer("fedprox", "fedprox:FedProx", "clients' steps held near the average", STEPS | {"mu": 0.1}),
    Trainer("scaffold", "scaffold:Scaffold", "clients' steps corrected for their drift"),
    Trainer("ditto", "ditto:Ditto", "own models pulled to the average", STEPS | {"lam": 0.1, "s": 5}),
    Trainer("pfedme", "pfedme:PFedMe", "own models in Moreau envelopes", STEPS | {"lam": 5.0, "alpha": 0.05, "R": 5}),
    Trainer("l2gd", "l2gd:L2GD", "own models pulled to their mean where a coin falls so", STEPS | {"lam": 0.1}),
    Trainer("apfl", "apfl:APFL", "own models mixed with the average"),
    Trainer("fedper", "fedper:FedPer", "own last layers", layout="personal"),
    Trainer("fedrep", "fedrep:FedRep", "own last layers, trained first", layout="personal"),
    Trainer("fedbn", "fedbn:FedBN", "own normalisation", normalises=True),
    Trainer("ifca", "ifca:IFCA", "a model for each of k groups, chosen by loss", STEPS | {"k": 4, "tau": 5}),
    Trainer("cfl", "cfl:CFL", "groups split where their updates disagree", STEPS | {"eps1": 0.4, "eps2": 1.6}),
    Trainer("found-groups", "found_groups:FoundGroups", "groups found by updates, then a model for each", _GROUPED),
    Trainer("group-sgd", "group_sgd:GroupSGD", "known groups, some layers shared", _GROUPED, True, "shared"),
    Trainer("cluster-l2gd", "l2gd:L2GD", "the same for known groups", STEPS | {"lam": 0.1, "alpha": 0.3}, True),
    Trainer(
        "group-models",
        "group_sgd:GroupSGD",
        "a model for each known group",
        _GROUPED,
        True,
        fixed_options={"shared": ()},
    ),
    Trainer(
        "group-penalty",
        "group_penalty:GroupPenalty",
        "own layers pulled together within known groups",
        STEPS | {"lam": 0.1, "tau": 5},
        True,
        "personal",
    ),
)
TRAINERS = {t.name: t for t in _EVERY}


def trainer(name: str, folder: Path | None = None) -> Trainer:
    """A method by name, or one of the user's own by its import path "package.module:Class".

    Parameters
    ----------
    name : str
    folder : path, optional
        Where modules of the user's own are looked for first.

    Raises
    ------
    CoterieError
        For an unknown name, with those that may have been meant, and for a class that cannot be found or is no method.
    """
    if ":" in name:
        return user_defined_method(name, folder)
    if name not in TRAINERS:
        hint = nearest(name, TRAINERS) or f" There are {', '.join(TRAINERS)}, and package.module:Class."
        raise CoterieError(f"There is no method to train called '{name}'.{hint}")
    return TRAINERS[name]
