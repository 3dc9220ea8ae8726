"""What the methods for a main client and its collaborators are made of."""
