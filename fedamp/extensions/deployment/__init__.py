"""Who belongs to a deployment, and what a machine of it lacks."""
