"""What methods share in which clients train at home and a server averages what they send."""
