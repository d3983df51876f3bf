#!/bin/sh
# SageMaker's argument, `serve`, is no flag; HF_MODEL_ID, HF_MODEL_REVISION, SM_NUM_GPUS and the like are read as TGI's
# image reads them. A model that SageMaker unpacked is HF_MODEL_ID=/opt/ml/model.
set -eu
if [ -z "${HF_MODEL_ID:-}" ]; then
    echo "HF_MODEL_ID must be set: a hub id, or /opt/ml/model" >&2
    exit 1
fi
exec text-generation-launcher --port 8080 --json-output
