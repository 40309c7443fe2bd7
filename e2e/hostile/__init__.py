"""``make hostile``: what an honest client keeps while somebody does his worst beside it."""
