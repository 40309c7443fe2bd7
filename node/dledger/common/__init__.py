"""Values and small tools that all packages use; they depend on no other package."""
