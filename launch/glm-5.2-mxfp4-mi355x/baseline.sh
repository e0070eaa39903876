#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

about="Serve GLM-5.2-MXFP4 without context parallelism, otherwise as cp.sh does."
arms="off"
flags=(--disable-radix-cache)
serve "$@"
