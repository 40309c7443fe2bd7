"""``make hostile``: what an honest client is guaranteed while an attacker works beside it."""
