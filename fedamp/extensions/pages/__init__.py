"""Pages about runs: reports, releases with the papers of a board, and a live page."""
