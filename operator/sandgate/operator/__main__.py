"""`python -m sandgate.operator --settings FILE`: how the operator's image starts, without command-line libraries."""

from __future__ import annotations

from sandgate.operator.command import main

if __name__ == "__main__":
    raise SystemExit(main())
