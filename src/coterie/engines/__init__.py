"""Engines: where client work runs. Methods never import this room."""

from coterie.engines.local_engines import InProcess, Loopback

__all__ = ["InProcess", "Loopback"]
