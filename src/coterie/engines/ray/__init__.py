"""Sites as Ray actors, for clients that outgrow one machine."""

from coterie.engines.ray.engine import Ray

__all__ = ["Ray"]
