"""A job in the middle of which something dies, and the three books that must agree afterwards."""
