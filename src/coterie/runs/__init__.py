"""Runs: what is run (the configuration, the rows, the model), and the loop of states that saves and goes on."""
