"""A log of who was refused at the coordinator's port: without it a failed TLS handshake leaves no trace there."""

from __future__ import annotations

import logging

FILE = "refused.txt"


class Refusals(logging.Filter):
    """Lets through what asyncio, in its debug mode, says of connections and of handshakes that failed, in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record, which is shortened."""
        said = record.msg
        if said == "%r got a new connection from %r: %r" and isinstance(record.args, tuple):
            record.msg, record.args = "connection from %s", (record.args[1],)
            return True
        failed = isinstance(record.args, tuple) and any("handshake failed" in str(a) for a in record.args)
        if failed and record.exc_info:
            problem = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            reason = str(problem) or f"it hung up ({type(problem).__name__})"
            record.msg, record.args, record.exc_info = "refused: %s", (reason,), None
            return True
        return False


def settings(log: dict[str, object], filename: str = FILE) -> None:
    """Add the file to NVFlare's log configuration."""
    name = f"{__name__}.{Refusals.__name__}"
    log.setdefault("filters", {})["refusals"] = {"()": name}  # type: ignore[index]
    log["handlers"]["refusals"] = {  # type: ignore[index]
        "class": "logging.handlers.RotatingFileHandler",
        "level": "DEBUG",
        "formatter": "baseFormatter",
        "filters": ["refusals"],
        "filename": filename,
        "mode": "a",
        "maxBytes": 20_971_520,
        "backupCount": 10,
    }
    log["loggers"]["asyncio"] = {"level": "DEBUG", "handlers": ["refusals"], "propagate": False}  # type: ignore[index]
