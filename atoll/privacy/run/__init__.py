"""What one run may claim: the request in its file, the policy that keeps it true, leak checks, and its account."""
