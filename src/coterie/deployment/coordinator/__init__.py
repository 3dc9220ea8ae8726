"""What the coordinator runs: checks, fits, trainings and comparisons over sites that keep their rows."""
