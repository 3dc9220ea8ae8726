"""What really travels: rows of numbers as bytes, and back."""

from __future__ import annotations

from coterie.codecs.base import Codec, Encoded
from coterie.codecs.lookup import by_name

__all__ = ["Codec", "Encoded", "by_name"]
