"""Variants of models trained and measured on the same data, each in a process of its own."""
