#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

about="Serve GLM-5.2-MXFP4, radix cache on. GET /health says 503 while it starts and 200 when it serves."
arms="sharded replicated off"
flags=()
serve "$@"
