#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

about="Serve GLM-5.2-MXFP4 with context parallelism, for measurements: no radix cache."
arms="sharded replicated"
flags=(--disable-radix-cache)
serve "$@"
