"""What the operator counts."""
