"""Values and small tools that know nothing of the other rooms."""
