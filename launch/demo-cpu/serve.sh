#!/usr/bin/env bash
# Serve a model on the CPU reference platform, context parallelism on. For correctness, not for speed.
#
#   launch/demo-cpu/serve.sh [MODEL_DIR] [more launch_server arguments]
#
# Without MODEL_DIR a tiny random GLM-5.x checkpoint is made. Environment: PYTHON, PORT (30000), TP_SIZE (2).
set -euo pipefail

python=${PYTHON:-python}
port=${PORT:-30000}
tp_size=${TP_SIZE:-2}

if [[ $# -gt 0 && $1 != -* ]]; then
    model=$1
    shift
else
    model=.work/serve/tiny-glm
    [[ -f $model/config.json ]] || "$python" -m sglang_cp.cli tiny-checkpoint "$model"
fi
[[ -f $model/config.json ]] || { echo "$model holds no model (no config.json)." >&2; exit 1; }

# Once the server answers, say how to use it: below its start-up log, where a person looks.
"$python" - "$port" $$ <<'PY' &
import os, sys, time, urllib.request

port, server = sys.argv[1], int(sys.argv[2])
while True:
    time.sleep(1)
    try:
        os.kill(server, 0)
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        break
    except ProcessLookupError:
        sys.exit()
    except OSError:
        pass
print(f"""
Ready. Try:
  curl http://127.0.0.1:{port}/generate -H 'Content-Type: application/json' \\
    -d '{{"text": "The quick brown fox", "sampling_params": {{"max_new_tokens": 16, "temperature": 0}}}}'
End it with Ctrl-C.
""", flush=True)
PY

export SGLANG_PLATFORM=cpu_reference
exec "$python" -m sglang.launch_server --model-path "$model" --port "$port" --tp-size "$tp_size" \
    --enable-prefill-cp --cp-strategy interleave "$@"
