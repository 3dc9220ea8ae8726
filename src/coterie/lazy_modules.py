"""Packages that take long to import, as modules that load when something of them is first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["pd", "sparse", "special"]


class Later(ModuleType):
    """A module that is imported when it is first asked for something."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


if TYPE_CHECKING:
    import pandas as pd
    from scipy import sparse, special
else:
    pd, sparse, special = map(Later, ("pandas", "scipy.sparse", "scipy.special"))
