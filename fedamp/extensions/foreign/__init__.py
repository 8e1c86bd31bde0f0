"""Other tools: their accountants and ours, and the numbers in files of theirs."""
