"""Engines: where client work runs. Methods never import this room."""

from coterie.engines.inprocess import InProcess
from coterie.engines.loopback import Loopback

__all__ = ["InProcess", "Loopback"]
