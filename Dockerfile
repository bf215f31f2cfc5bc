# Two images of one source: `docker build --target service .` (API, queue worker, reconciler, migrations; no torch) and
# `docker build --target worker .` (trains; torch with CUDA). Both run as an ordinary user.

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH=/opt/motet/bin:$PATH
RUN useradd --uid 10001 --create-home motet \
    && install -d -o motet -g motet /var/lib/motet

FROM base AS source
RUN python -m venv /opt/motet
WORKDIR /src
COPY pyproject.toml constraints.txt ./

FROM source AS build-service
COPY README.md LICENSE ./
COPY contract contract
COPY service service
COPY worker worker
COPY kernels kernels
COPY client client
COPY deploy deploy
COPY migrations migrations
RUN /opt/motet/bin/pip install --constraint constraints.txt ".[service,backup]"

FROM source AS build-worker
# its own layer: it is large, and changes only with its pin
ARG TORCH_INDEX=
RUN /opt/motet/bin/pip install --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    "$(grep '^torch==' constraints.txt)" setuptools
COPY README.md LICENSE ./
COPY contract contract
COPY service service
COPY worker worker
COPY kernels kernels
COPY client client
COPY deploy deploy
COPY migrations migrations
RUN /opt/motet/bin/pip install --constraint constraints.txt ".[worker]"

FROM base AS service
COPY --from=build-service /opt/motet /opt/motet
ENV MOTET_HOST=0.0.0.0 \
    MOTET_PORT=8321 \
    MOTET_STATE_DIR=/var/lib/motet/state \
    MOTET_STORAGE_DIR=/var/lib/motet/storage
RUN install -d -o motet -g motet /var/lib/motet/state /var/lib/motet/storage
USER motet
VOLUME /var/lib/motet
EXPOSE 8321 8322
CMD ["python", "-m", "service", "api"]

FROM base AS worker
# Triton compiles its launchers with the system's C compiler
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-worker /opt/motet /opt/motet
ENV MOTET_WORKER_DIR=/var/lib/motet/worker
RUN install -d -o motet -g motet /var/lib/motet/worker
USER motet
VOLUME /var/lib/motet
CMD ["python", "-m", "worker"]
