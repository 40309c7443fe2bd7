"""What a user asks for, one module each: take a request, do it, return a result."""
