"""Credit: what of a group teaches the policy, and how much."""
