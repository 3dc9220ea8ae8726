"""Codecs by name: ``"float16"``, ``"qsgd:4"``, ``"tv:4"``."""

from __future__ import annotations

from importlib import import_module

from coterie.codecs.base import Codec
from coterie.errors import CoterieError, nearest

# name: (module, class); each class has a classmethod ``of(*parameters: str)`` where it takes any.
_KNOWN = {
    "none": ("floats", "Float64"),
    "float64": ("floats", "Float64"),
    "float32": ("floats", "Float32"),
    "float16": ("floats", "Float16"),
    "qsgd": ("qsgd", "QSGD"),
    "topk": ("topk", "TopK"),
    "sign": ("sign", "SignScale"),
    "kmeans": ("kmeans", "KMeans"),
    "lowrank": ("low_rank", "LowRank"),
    "tv": ("total_variation", "TotalVariation"),
}


def by_name(name: str | None) -> Codec:
    """The codec called ``name``, with its parameters after colons: ``"qsgd:4"`` has 4 bits a coordinate.

    Parameters
    ----------
    name : str, optional
        None is ``"none"``: float64, nothing lost.

    Raises
    ------
    CoterieError
        For a name or a parameter that is not known.
    """
    kind, *parameters = (name or "none").strip().lower().split(":")
    if kind not in _KNOWN:
        raise CoterieError(f"There is no codec {name!r}; there are {', '.join(_KNOWN)}.{nearest(kind, _KNOWN)}")
    module, class_name = _KNOWN[kind]
    make = getattr(import_module(f"coterie.codecs.{module}"), class_name)
    codec: Codec
    try:
        codec = make.of(*parameters) if parameters else make()
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CoterieError):
            raise
        raise CoterieError(f"Codec {name!r} has parameters that {kind!r} does not take.") from error
    return codec
