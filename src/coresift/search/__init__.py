"""Search: the two questions that selectors ask a pool, answered on each kind of hardware."""
