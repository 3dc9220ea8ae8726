"""The constants that theory needs, from a few gradients, with standard errors; and what follows from them."""
