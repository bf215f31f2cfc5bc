# Images of one source: `docker build --target service .` (API, queue worker, reconciler, migrations; no torch), `--target worker`
# (trains; torch with CUDA) and `--target demo` (what `motet demo` needs beside a worker). All run as an ordinary user.
#
# Packages are those of deploy/images/locks, by sha256. Two builds are equal, byte for byte, where SOURCE_DATE_EPOCH, PYTHON_IMAGE
# (by digest) and APT_SNAPSHOT are: docs/OPERATIONS.md, "Images".

ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS base
ARG SOURCE_DATE_EPOCH
ENV PYTHONUNBUFFERED=1 \
    PATH=/opt/motet/bin:$PATH
RUN groupadd --gid 10001 motet \
    && useradd --uid 10001 --gid 10001 --create-home motet \
    && install -d -o motet -g motet /var/lib/motet

# pip and the tool that lists packages: they make the images, and are in none
FROM ${PYTHON_IMAGE} AS tools
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH \
    PYTHONHASHSEED=0 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1
WORKDIR /src
COPY deploy/images/locks locks
RUN python -m venv /opt/tools \
    && /opt/tools/bin/python -m pip install --no-deps --require-hashes --requirement locks/tools.txt

FROM tools AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY contract contract
COPY service service
COPY worker worker
COPY kernels kernels
COPY client client
COPY deploy deploy
COPY migrations migrations
# the wheel keeps modes, which a clone has of its user's umask
RUN chmod -R u=rwX,go=rX . \
    && /opt/tools/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM tools AS build-service
RUN python -m venv --without-pip /opt/motet \
    && /opt/tools/bin/python -m pip --python /opt/motet/bin/python install --no-deps --require-hashes --requirement locks/service.txt
COPY --from=wheel /wheels /wheels
RUN /opt/tools/bin/python -m pip --python /opt/motet/bin/python install --no-deps /wheels/*.whl \
    && /opt/tools/bin/python -m pip --python /opt/motet/bin/python check \
    && /opt/tools/bin/cyclonedx-py environment --output-reproducible --output-file /opt/motet/sbom.cdx.json /opt/motet/bin/python \
    && /opt/motet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/motet/lib

FROM tools AS build-worker
# its own layer: it is large, and changes only with its pin
ARG TORCH_INDEX=
RUN python -m venv --without-pip /opt/motet \
    && if [ -z "$TORCH_INDEX" ]; then set -- --require-hashes --requirement locks/torch.txt; \
       else set -- --extra-index-url "$TORCH_INDEX" "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' locks/torch.txt)"; fi \
    && /opt/tools/bin/python -m pip --python /opt/motet/bin/python install --no-deps "$@"
RUN /opt/tools/bin/python -m pip --python /opt/motet/bin/python install --no-deps --require-hashes --requirement locks/worker.txt
COPY --from=wheel /wheels /wheels
RUN /opt/tools/bin/python -m pip --python /opt/motet/bin/python install --no-deps /wheels/*.whl \
    && /opt/tools/bin/python -m pip --python /opt/motet/bin/python check \
    && /opt/tools/bin/cyclonedx-py environment --output-reproducible --output-file /opt/motet/sbom.cdx.json /opt/motet/bin/python \
    && /opt/motet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/motet/lib

FROM build-worker AS build-demo
RUN /opt/tools/bin/python -m pip --python /opt/motet/bin/python install --no-deps --require-hashes --requirement locks/demo.txt \
    && /opt/tools/bin/python -m pip --python /opt/motet/bin/python check \
    && /opt/tools/bin/cyclonedx-py environment --output-reproducible --output-file /opt/motet/sbom.cdx.json /opt/motet/bin/python \
    && /opt/motet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/motet/lib

FROM base AS service
COPY --from=build-service /opt/motet /opt/motet
ENV MOTET_HOST=0.0.0.0 \
    MOTET_PORT=8321 \
    MOTET_STATE_DIR=/var/lib/motet/state \
    MOTET_STORAGE_DIR=/var/lib/motet/storage
RUN install -d -o motet -g motet /var/lib/motet/state /var/lib/motet/storage
USER 10001:10001
VOLUME /var/lib/motet
EXPOSE 8321 8322 8323
CMD ["python", "-m", "service", "api"]

FROM base AS worker
# Triton compiles its launchers with the system's C compiler. APT_SNAPSHOT: the address of a dated copy of Debian's archive
ARG APT_SNAPSHOT=
RUN if [ -n "$APT_SNAPSHOT" ]; then \
        . /etc/os-release; rm -f /etc/apt/sources.list.d/*; \
        echo "deb [check-valid-until=no] $APT_SNAPSHOT $VERSION_CODENAME main" > /etc/apt/sources.list; fi \
    && apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache
COPY --from=build-worker /opt/motet /opt/motet
ENV MOTET_WORKER_DIR=/var/lib/motet/worker
RUN install -d -o motet -g motet /var/lib/motet/worker
USER 10001:10001
VOLUME /var/lib/motet
CMD ["python", "-m", "worker"]

FROM base AS demo
COPY --from=build-demo /opt/motet /opt/motet
ENV MOTET_STATE_DIR=/var/lib/motet/state
USER 10001:10001
CMD ["motet", "demo", "--running"]
