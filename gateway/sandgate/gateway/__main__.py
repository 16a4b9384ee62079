"""`python -m sandgate.gateway --config FILE`: how the gateway's image starts, without command-line libraries."""

from __future__ import annotations

from sandgate.gateway.app import main

if __name__ == "__main__":
    raise SystemExit(main())
