# The repository in /app, with what one kind of device needs:
#
#   docker build --tag=REGISTRY/flax-ensembles:COMMIT .
#   docker build --build-arg=DEVICES=tpu --tag=REGISTRY/flax-ensembles:COMMIT-tpu .
#
# DEVICES is cuda (CUDA 13: a driver of 580 or newer), cuda12 (older drivers), tpu, or cpu.
# More: docs/devices.md
FROM python:3.13-slim
ARG DEVICES=cuda
WORKDIR /app
COPY requirements*.txt ./
RUN touch requirements-cpu.txt \
  && pip install --no-cache-dir -r requirements.txt -r requirements-prepare.txt \
    -r "requirements-$DEVICES.txt" gcsfs
COPY . .
ENTRYPOINT ["python", "train.py"]
CMD ["--help"]
