"""Searching and scoring without the matrix of all scores, in bounded memory."""
