"""One paper, one file: client work, the coordinator's steps, and what theory says. No engine is imported here."""
