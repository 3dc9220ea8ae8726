"""Rules that weigh gradients heard one by one, and put them together."""
