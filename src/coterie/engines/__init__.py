"""Engines: where client work runs. Methods never import this room."""

from coterie.engines.inprocess import InProcess
from coterie.engines.loopback import Faults, Loopback

__all__ = ["Faults", "InProcess", "Loopback"]
