"""Sites as clients of NVFlare: official provisioning, mutual TLS, and processes that live as long as a run."""
