"""What a run leaves: its folder, ledger, checkpoints, and their verification."""
