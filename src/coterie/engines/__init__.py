"""Engines: where client work runs. Methods never import this room."""

from coterie.engines.inprocess import InProcess

__all__ = ["InProcess"]
