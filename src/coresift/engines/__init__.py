"""Selection loops for particular hardware."""
