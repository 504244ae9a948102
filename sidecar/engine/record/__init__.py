"""What is kept of a run while it goes: its ledger, its image for a resume, its log."""
