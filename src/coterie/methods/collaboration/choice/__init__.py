"""With whom a main client should collaborate, and how much, from what clients' gradients say."""
