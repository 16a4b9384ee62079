#!/bin/sh
# With the Python that verifiers is installed for, which stands beside its commands: `python` alone is Sandgate's own here.
exec "$(dirname "$(command -v vf-eval)")/python" agent.py
