"""What crosses a door: the types that rooms share. Standard library only."""
