"""What methods share in which clients train on their own rows and a server averages what they send."""
