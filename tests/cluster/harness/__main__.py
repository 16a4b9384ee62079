"""`python -m tests.cluster.harness up|down`: a cluster that stays, which test runs then use and leave on.

`up operator=localhost/sandgate-operator:any ...` also builds images of this clone, by these names, into its nodes.
"""

from __future__ import annotations

import argparse
import time

from tests.cluster.harness.machines import Machines
from tests.cluster.harness.needs import why_no_cluster
from tests.cluster.harness.shared import start_for_make, stop_for_make
from tests.images.ours import build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.harness", description=__doc__)
    parser.add_argument("what", choices=["up", "down"])
    parser.add_argument("images", nargs="*", metavar="NAME=IMAGE", help="images of this clone to load")
    args = parser.parse_args()
    if why := why_no_cluster():
        raise SystemExit(why)
    began = time.monotonic()
    if args.what == "up":
        start_for_make()
        load(args.images)
        print(f"export KUBECONFIG={Machines().api.kubeconfig}")
    else:
        stop_for_make()
    print(f"# {args.what}: {time.monotonic() - began:.1f} s")


def load(wanted: list[str]) -> None:
    """Each built if this clone changed, and imported by every node."""
    for one in wanted:
        name, _, image = one.partition("=")
        archive = build(name, image)
        for node in Machines().nodes.values():
            node.load_image(archive)


if __name__ == "__main__":
    main()
