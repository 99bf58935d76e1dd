"""A corpus of broken files with the exact message for each."""
