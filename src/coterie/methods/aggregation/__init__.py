"""How what clients return is put together: who is left out, robust averages, trust."""
