"""Starting ranks, hearing them, stopping them, and saying why they failed; nothing of training, no torch."""
