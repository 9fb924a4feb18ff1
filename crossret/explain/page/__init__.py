"""One self-contained HTML page that explains scores: hover a word, see its regions, and what the score is made of."""
