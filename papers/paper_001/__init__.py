"""Lyu, Hanzely, Kolar (2022), Personalized federated learning with multiple known clusters."""
