# syncer alone: docker build --tag syncer .
#
# To deploy your documents with it, add your config folder: see docs/deploy.md.

FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY syncer syncer
COPY migrations migrations
COPY config/syncer.template.yaml config/
COPY config/documents config/documents
COPY docs/operating.md docs/operating.md
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
    && python -m venv /opt/syncer \
    && /opt/syncer/bin/pip install --no-cache-dir /dist/*.whl

FROM python:3.13-slim
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
