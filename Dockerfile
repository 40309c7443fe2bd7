# One image for the node and the operator.
#
# It installs wheels that were made before, never from the network:
#   python -m e2e.cluster.image wheels
#   docker build --tag dledger.io/dledger:0.1.0 .
# (`python -m e2e.cluster.image build` does both, and works without Docker, too.)
# `docker buildx imagetools inspect python:3.11-slim-bookworm` names the newest digest.
ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${BASE}

RUN groupadd --gid 10001 dledger \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
            --shell /usr/sbin/nologin dledger

# Dependencies and project are layers of their own: a change of the source redoes the last only.
# Both are named by a hash, for builders that do not look into what they mount.
# pip installs from an environment of its own: nothing that runs here needs it.
ARG DEPENDENCIES=unknown
RUN --mount=type=bind,source=build/wheels/dependencies,target=/wheels \
    echo "dependencies ${DEPENDENCIES}" \
 && python3 -m venv --without-pip /opt/dledger \
 && python3 -m venv /tmp/installer \
 && /tmp/installer/bin/pip --python /opt/dledger/bin/python install \
        --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && rm --recursive /tmp/installer

ARG PROJECT=unknown
RUN --mount=type=bind,source=build/wheels/project,target=/wheels \
    echo "project ${PROJECT}" \
 && python3 -m venv /tmp/installer \
 && /tmp/installer/bin/pip --python /opt/dledger/bin/python install \
        --no-cache-dir --no-index --no-deps /wheels/*.whl \
 && rm --recursive /tmp/installer

ENV PATH=/opt/dledger/bin:${PATH} \
    PYTHONUNBUFFERED=1

USER 10001:10001
WORKDIR /
# The operator's pod runs /opt/dledger/bin/dledger-operator instead.
ENTRYPOINT ["/opt/dledger/bin/dledger"]
