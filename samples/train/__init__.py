"""Trains the small sample models of quatrain on text that ships with Python."""
