"""How fast fedamp is, as ratios to others in turn on one machine, and what it costs."""
