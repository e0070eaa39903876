#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly arms="off replicated sharded auto"
model=${MODEL_PATH:-}
port=${PORT:-30000}
arm=sharded

usage() {
    cat <<END
Usage: ${0##*/} [--NAME VALUE ...] [-- MORE_SGLANG_ARGUMENTS ...]

Serve GLM-5.x on two Hopper GPUs, for measurements: no radix cache.

  --model DIR   a GLM-5.x (environment: MODEL_PATH); by default GLM-5.2's geometry with 6 layers and random weights,
                made in $work (environment: WORK)
  --port N      where the server listens [$port] (environment: PORT)
  --gpus LIST   GPUs, at least $tp_size [$gpus] (environment: CUDA_VISIBLE_DEVICES)
  --arm ARM     context parallelism, one of: $arms [$arm]

If the launch cannot succeed: one sentence and exit code 2, before anything is loaded.
END
}

parse "model port gpus arm" "$@"
((${#words[@]} == 0)) || refuse_unknown "${words[0]}"
[[ " $arms " == *" $arm "* ]] || refuse "--arm is one of: $arms; not '$arm'."
check_port
[[ -z $model ]] || check_model "name a GLM-5.x with --model, or leave it out"
check_port_is_free
check_package "$environment"
check_gpus
[[ -n $model ]] || geometry every-layer

weights=()
compgen -G "$model/*.safetensors" >/dev/null || weights=(--load-format dummy)
cp=()
case $arm in
    replicated) cp=(--enable-prefill-cp --cp-strategy interleave --cp-attn-weights replicated) ;;
    sharded) cp=(--enable-prefill-cp --cp-strategy interleave --cp-attn-weights sharded) ;;
    auto) cp=(--enable-prefill-cp --cp-strategy interleave --cp-attn-weights sharded --cp-min-tokens auto) ;;
esac
export CUDA_VISIBLE_DEVICES=$gpus
exec python3 -m sglang.launch_server \
    --model-path "$model" --tp-size "$tp_size" --port "$port" --disable-radix-cache \
    "${server_flags[@]}" "${weights[@]}" "${cp[@]}" "${more[@]}"
