#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly output_tokens=512
output=results

usage() {
    cat <<END
Usage: ${0##*/} [--NAME VALUE ...] [POINTS ...] [-- MORE_BENCH_SERVING_ARGUMENTS ...]

Measure a running server. Its arm (off, sharded, replicated; -radix with the radix cache on) is asked of the server, and
results are appended to DIR/ARM.jsonl. Points that are there in full are not measured again.

POINTS, by default all:
  probe                       one request at a time, prompts of up to 4,096 tokens
  1024 | 4096 | 40960 | 61440 prompts of exactly so many tokens, at several concurrencies

  --model DIR    local copy of amd/GLM-5.2-MXFP4, for its tokenizer [$model] (environment: MODEL_PATH)
  --port N       where the server listens [$port] (environment: PORT)
  --output DIR   where results go [$output]
END
}

# The arm that the server runs, for the name of the result file: a label given by hand could be wrong.
arm_of_server() {
    python3 - "$port" <<'PY'
import json, sys, urllib.request

with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/server_info", timeout=60) as response:
    info = json.load(response)
arm = info["cp_attn_weights"] if info["enable_prefill_cp"] else "off"
print(arm if info["disable_radix_cache"] else f"{arm}-radix")
PY
}

measured() { # TAG PROMPTS: is this point in the file, with every request answered?
    grep -qsE "^\{\"tag\": \"$1\",.*\"completed\": $2," "$file"
}

measure() { # TAG PROMPTS CONCURRENCY INPUT_TOKENS [ARGUMENT ...]
    local tag=$1 prompts=$2
    if measured "$tag" "$prompts"; then
        echo "$tag is in $file already."
        return
    fi
    python3 -m sglang.bench_serving --backend sglang-oai --host 127.0.0.1 --port "$port" \
        --model "$served_model_name" --tokenizer "$model" \
        --dataset-name random --random-input-len "$4" --random-output-len "$output_tokens" \
        --num-prompts "$prompts" --max-concurrency "$3" "${@:5}" \
        --output-file "$file" --tag "$tag" "${more[@]}"
    if ! measured "$tag" "$prompts"; then
        echo "${0##*/}: Not all $prompts requests of $tag were answered: see the server's log, then run this again." >&2
        exit 1
    fi
}

sweep() { # INPUT_TOKENS CONCURRENCY ...
    local concurrency prompts
    for concurrency in "${@:2}"; do
        # The blog post does not say how many prompts: four rounds, and at least as many as the probe has.
        prompts=$((concurrency > 4 ? 4 * concurrency : 16))
        measure "$1-$output_tokens-c$concurrency" "$prompts" "$concurrency" "$1" --random-range-ratio 1.0 --flush-cache
    done
}

parse "model port output" "$@"
((${#words[@]} > 0)) || words=(probe 1024 4096 40960 61440)
for points in "${words[@]}"; do
    [[ $points =~ ^(probe|1024|4096|40960|61440)$ ]] || refuse "There are no points '$points': see --help."
done
check_port
check_model "$hint"
arm=$(arm_of_server 2>/dev/null) || refuse "No SGLang server answers on port $port: start one, or name its --port."
mkdir -p "$output" 2>/dev/null || refuse "The directory '$output' cannot be made: name another with --output."
file=$output/$arm.jsonl

for points in "${words[@]}"; do
    case $points in
        probe) measure "probe" 16 1 4096 ;;
        1024 | 4096) sweep "$points" 4 8 16 32 48 ;;
        40960 | 61440) sweep "$points" 1 4 8 16 20 24 32 ;;
    esac
done
echo "All points asked for are in $file."
