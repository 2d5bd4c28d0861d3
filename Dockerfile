# syncer alone: docker build --tag syncer .
#
# To deploy your documents with it, add your config folder: see docs/deploy.md.

FROM python:3.13-slim@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285 AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY syncer syncer
COPY migrations migrations
COPY config/syncer.template.yaml config/
COPY config/documents config/documents
COPY docs/operating.md docs/operating.md
COPY deploy/image deploy/image
# Nothing is installed but what the two files name, by hash.
RUN pip install --no-cache-dir --require-hashes --requirement deploy/image/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && python -m venv /opt/syncer \
    && /opt/syncer/bin/pip install --no-cache-dir --require-hashes --requirement deploy/image/requirements.txt \
    && /opt/syncer/bin/pip install --no-cache-dir --no-deps --no-index /dist/*.whl

FROM python:3.13-slim@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin syncer
COPY --from=build /opt/syncer /opt/syncer
ENV PATH=/opt/syncer/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    SYNCER_CONFIG=/etc/syncer \
    SYNCER_LOG_FORMAT=json
USER 10001:10001
WORKDIR /etc/syncer
STOPSIGNAL SIGTERM
ENTRYPOINT ["syncer"]
CMD ["run"]
