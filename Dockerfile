# Two stages of one base: what runs holds the virtual environment and nothing that built it. Every step is a list, without
# a shell, so that tests/test_dockerfile.py can run the same steps where there is no container engine.
FROM python:3.13-slim-bookworm AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN ["python", "-I", "-m", "venv", "/opt/secret-sidecar"]
RUN ["/opt/secret-sidecar/bin/python", "-I", "-m", "pip", "install", "--require-hashes", "--only-binary=:all:", "-r", "requirements/build.txt", "-r", "requirements/runtime.txt"]
COPY pyproject.toml README.md LICENSE ./
COPY provider provider/
COPY sidecar sidecar/
RUN ["/opt/secret-sidecar/bin/python", "-I", "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", "."]
RUN ["/opt/secret-sidecar/bin/python", "-I", "-m", "pip", "uninstall", "--yes", "setuptools", "pip"]

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="secret-sidecar"
LABEL org.opencontainers.image.description="Mounted-files secret provider sidecar"
LABEL org.opencontainers.image.version="0.1.0"
LABEL org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/secret-sidecar /opt/secret-sidecar
# The root file system is read-only.
ENV PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 5801 8080 9090
ENTRYPOINT ["/opt/secret-sidecar/bin/secret-sidecar"]
CMD ["serve"]
