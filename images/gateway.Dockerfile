# sandgate-gateway: the process of a gateway pod. Build from the repository's root: images/build.sh gateway
# Runs as any user but root, with a read-only root file system: the model's directory and the
# journal's volume are mounted.
ARG BASE=python:3.11-slim

# The first stage is the same text in every image with a wheel, so that builders make it once.
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

# What the room's extras need, apart from the wheel: it changes rarely. Without pip of its own: nothing is installed into
# a running pod. gateway-arrow, for leases in Arrow and for Parquet files, is 165 MB, more than all the rest: without it
# (EXTRAS="gateway gateway-postgres gateway-vision") trainers lease JSON, and jobs with spec.output.parquet do not run.
FROM $BASE AS install
ARG EXTRAS="gateway gateway-postgres gateway-vision gateway-arrow"
COPY pyproject.toml constraints.txt /src/
RUN python3 -m venv --without-pip /opt/sandgate \
 && python3 -c 'import tomllib; p = tomllib.load(open("/src/pyproject.toml", "rb"))["project"]; \
    import sys; print(*(one for extra in sys.argv[1:] for one in p["optional-dependencies"][extra]), sep="\n")' $EXTRAS \
    > /src/requirements.txt \
 && python3 -m pip --python /opt/sandgate/bin/python install --no-cache-dir -q -c /src/constraints.txt \
    -r /src/requirements.txt \
 && echo /opt/room > "$(/opt/sandgate/bin/python -c 'import site; print(site.getsitepackages()[0])')/room.pth"

# The wheel is a layer of its own: a node that had the release before fetches this one alone, if the builder kept
# the stage above.
FROM install AS room
COPY --from=wheel /wheels /wheels
RUN python3 -m pip --python /opt/sandgate/bin/python install --no-cache-dir -q --no-deps --target /opt/room /wheels/sandgate-*.whl \
 && rm -r /opt/room/bin

FROM $BASE
COPY --from=install /opt/sandgate /opt/sandgate
COPY --from=room /opt/room /opt/room
ENV PATH=/opt/sandgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
# The console script `sandgate` is the trainer's, with libraries for people; a pod needs none of them.
ENTRYPOINT ["python", "-m", "sandgate.gateway"]
