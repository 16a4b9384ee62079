# sandgate-fetcher: init container of sandboxes; one file and an interpreter. Build from the repository's root:
# images/build.sh fetcher
ARG BASE=python:3.11-slim

FROM $BASE
COPY --chmod=0444 sandbox/sandgate/sandbox/entry.py /opt/sandgate/entry.py
USER 65532:65532
# -I -S: nothing of the environment or of site-packages, and up in 20 ms.
ENTRYPOINT ["python3", "-I", "-S", "/opt/sandgate/entry.py"]
