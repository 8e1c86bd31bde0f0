"""What a person writes (the scenario) and what follows from it (the plan and its cost)."""
