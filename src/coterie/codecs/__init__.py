"""What really travels: rows of numbers as bytes, and back."""

from __future__ import annotations

from coterie.codecs.base import Codec, Encoded
from coterie.codecs.registry import DEFAULT, DEFAULT_FEEDBACK, DEFAULT_ORDER, by_name, codec_option

__all__ = ["DEFAULT", "DEFAULT_FEEDBACK", "DEFAULT_ORDER", "Codec", "Encoded", "by_name", "codec_option"]
