"""How the clients' personal parameters hang together."""
