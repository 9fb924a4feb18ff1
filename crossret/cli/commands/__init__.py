"""The commands, a file for each or for a few of one kind."""
