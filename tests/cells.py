"""A call of the front for every cell of methods x models, made of the rows of the table of methods alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

import coterie
from coterie.methods.method import STRENGTHS, Method

ROUNDS = 2  # of which the second starts from what the first left
CLIENTS, INPUTS, CLASSES = 6, 4, 3


def schools(each: int = 24) -> pd.DataFrame:
    """Twelve schools, four at each of three sites, in three districts that span sites."""
    rng = np.random.default_rng(5)
    school = np.arange(12 * each) % 12
    table = pd.DataFrame({"school": school + 100, "district": school % 3, "x": rng.normal(size=len(school))})
    table["y"] = 1.0 + table["x"] * (0.5 + 0.1 * school) + rng.normal(size=len(school))
    return table.assign(site=np.array(["east", "north", "south"])[school // 4])


def of_table(method: Method) -> dict[str, Any]:
    """What a method for tables needs to be told, and few rounds."""
    given: dict[str, Any] = {"shared": ["x"]} if method.relation == "layers" else {}
    given |= {"gamma": 3.0, "lam": 2.0} if method.takes == STRENGTHS else {}
    given |= {"network": {"space": "model", "k": 3, "lam": 0.5}} if method.networked else {}
    if method.rounds and not method.networked:
        main = {"main": [100, 103]} if method.relation == "main client" else {}
        given["rounds"] = {method.length: ROUNDS, "seed": 3, **main}
    return given


def net(norm: bool = False) -> nn.Module:
    """A net of two layers, and one that normalises between them where a method is about those."""
    inner = [nn.BatchNorm1d(5)] if norm else []
    parts = [nn.Linear(INPUTS, 5), *inner, nn.Tanh(), nn.Linear(5, CLASSES)]
    names = ["body", *["norm"] * norm, "act", "head"]
    return nn.Sequential(OrderedDict(zip(names, parts, strict=True)))


def of_net(method: Method) -> dict[str, Any]:
    """The same of a method for nets."""
    given: dict[str, Any] = {"rounds": 2}
    given |= {"personal": ["head*"]} if method.layout else {}
    given |= {"network": {"space": "model", "k": 2}} if method.networked else {}
    given |= {"main": ["0", "3"]} if method.relation == "main client" else {}
    given |= {"group": {str(i): i % 2 for i in range(CLIENTS)}} if method.groups or method.relation == "tree" else {}
    by_row = {"clip": 1.0, "noise": 0.5, "unit": "row", "seed": 1}
    return given | ({"privacy": by_row} if getattr(method.method_class, "by_row", False) else {})


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of six clients."""
    rng = np.random.default_rng(3)
    client = np.arange(12 * CLIENTS) % CLIENTS
    X = rng.normal(size=(len(client), INPUTS)).astype(np.float32)
    return X, (X[:, 0] + 0.5 * client + rng.normal(size=len(client))).astype(np.int64) % CLASSES, client


def fitted(method: Method, model: str, **options: Any) -> Any:
    """The cell of a method: a fit by the public front."""
    name: dict[str, Any] = {"method": method.name} | options
    if model == "table":
        return coterie.fit(schools(), "y ~ x", "school", "district", splits=0, **of_table(method), **name)
    X, y, client = arrays()
    made = coterie.Torch(net, args={"norm": True} if method.normalises else {})
    return coterie.fit((X, y), made, client, **(of_net(method) if method.trains else {}), **name)


def numbers(result: Any) -> np.ndarray:
    """The models of all clients that have one."""
    if hasattr(result, "model"):
        return np.vstack([result.theta, result.model.root])
    return result.theta[~np.isin(result.labels, result.run.helpers)] if result.run.helpers else result.theta
