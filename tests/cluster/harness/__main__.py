"""`python -m tests.cluster.harness up|down`: a cluster that stays, which test runs then use and leave on."""

from __future__ import annotations

import argparse
import time

from tests.cluster.harness.machines import Machines
from tests.cluster.harness.needs import why_no_cluster
from tests.cluster.harness.shared import start_for_make, stop_for_make


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.harness", description=__doc__)
    parser.add_argument("what", choices=["up", "down"])
    args = parser.parse_args()
    if why := why_no_cluster():
        raise SystemExit(why)
    began = time.monotonic()
    if args.what == "up":
        start_for_make()
        print(f"export KUBECONFIG={Machines().api.kubeconfig}")
    else:
        stop_for_make()
    print(f"# {args.what}: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
