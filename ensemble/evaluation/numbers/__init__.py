"""What an evaluation computes of targets that are numbers."""
