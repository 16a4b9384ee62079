"""The operator decides what should run, and where: a pure plan, and drivers that carry it out."""
