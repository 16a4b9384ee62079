# A trainer's image as its author would build it: Python and `sandgate[trainer,cluster]`. Context: the repository's root.
ARG BASE=python:3.11-slim

FROM $BASE AS wheel
COPY constraints.txt /src/
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir -q -c /src/constraints.txt hatchling
COPY pyproject.toml README.md LICENSE /src/
COPY contract /src/contract
COPY gateway /src/gateway
COPY operator /src/operator
COPY sandbox /src/sandbox
COPY trainer /src/trainer
RUN /build/bin/pip wheel --no-cache-dir -q --no-deps --no-build-isolation --wheel-dir /wheels /src

FROM $BASE
COPY pyproject.toml constraints.txt /src/
RUN python3 -m venv --without-pip /opt/trainer \
 && python3 -c 'import tomllib; p = tomllib.load(open("/src/pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
    print(*(n for e in ("gateway", "trainer", "cluster") for n in p[e] if not n.startswith("sandgate[")), sep="\n")' \
    > /src/requirements.txt \
 && python3 -m pip --python /opt/trainer/bin/python install --no-cache-dir -q -c /src/constraints.txt \
    -r /src/requirements.txt
COPY --from=wheel /wheels /wheels
RUN python3 -m pip --python /opt/trainer/bin/python install --no-cache-dir -q --no-deps /wheels/sandgate-*.whl
ENV PATH=/opt/trainer/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
