"""The results of a run: its folder, ledger, checkpoints, and their verification."""
