# shellcheck shell=bash
# GLM-5.2-MXFP4 on four MI355X: the one configuration, and what must hold before anything is loaded.
# Sourced by the scripts beside it. Source: "Serving GLM-5.2-MXFP4 on AMD Instinct MI355X: When Prefill Context
# Parallelism Pays" (ROCm blogs), whose command this is, flag for flag.

# shellcheck source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

readonly tp_size=4
readonly rocm=7.2
readonly served_model_name=glm-5.2-mxfp4

model=${MODEL_PATH:-/models/GLM-5.2-MXFP4}
port=${PORT:-30003}
gpus=${HIP_VISIBLE_DEVICES:-4,5,6,7}

readonly hint="name a local copy of amd/GLM-5.2-MXFP4 with --model"
readonly image="use the image that the Dockerfile beside this script makes"

# ROCm and the GPUs as torch, and so SGLang, will see them.
check_gpus() {
    local probe='import torch; print(torch.version.hip, torch.cuda.device_count())' found hip count
    found=$(HIP_VISIBLE_DEVICES=$gpus python3 -c "$probe" 2>/dev/null) ||
        refuse "\`$(command -v python3) -c 'import torch'\` fails: $image."
    read -r hip count <<<"$found"
    [[ $hip != None ]] || refuse "The torch of $(command -v python3) is not built for ROCm: $image."
    [[ $hip == "$rocm".* ]] || refuse "torch is built for ROCm $hip, this configuration is for ROCm $rocm: $image."
    ((count >= tp_size)) || refuse "$tp_size GPUs are needed, and of the GPUs $gpus torch sees $count:" \
        "name others with --gpus, or give the container /dev/kfd and /dev/dri."
}

# What makes a serving script different, set by it: a sentence, the arms (the first by default), flags of SGLang's.
about=""
arms=""
flags=()

# serve ARGUMENT ...: check everything that can be told without loading a weight, then become the server.
serve() {
    read -r arm _ <<<"$arms"
    parse "model port gpus arm" "$@"
    ((${#words[@]} == 0)) || refuse_unknown "${words[0]}"
    [[ " $arms " == *" $arm "* ]] || refuse "--arm is one of: $arms; not '$arm'."
    check_gpu_list 4,5,6,7
    check_port
    check_model "$hint"
    check_port_is_free
    check_package "$image"
    check_gpus

    local cp=()
    [[ $arm == off ]] || cp=(--enable-prefill-cp --cp-strategy interleave --cp-attn-weights "$arm")
    export HIP_VISIBLE_DEVICES=$gpus
    export SGLANG_USE_AITER=1
    export SGLANG_DSA_NO_PAD_HEADS=1
    exec python3 -m sglang.launch_server \
        --model-path "$model" --tp-size "$tp_size" \
        --trust-remote-code \
        --served-model-name "$served_model_name" \
        --attention-backend dsa --dsa-prefill-backend aiter --dsa-decode-backend aiter \
        --dsa-topk-backend sgl-kernel \
        --kv-cache-dtype bfloat16 \
        --chunked-prefill-size 32768 --mem-fraction-static 0.85 \
        --reasoning-parser glm45 --tool-call-parser glm47 \
        "${flags[@]}" --host 0.0.0.0 --port "$port" \
        "${cp[@]}" \
        --speculative-algorithm EAGLE --speculative-num-steps 5 \
        --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 \
        "${more[@]}"
}

usage() {
    cat <<END
Usage: ${0##*/} [--NAME VALUE ...] [-- MORE_SGLANG_ARGUMENTS ...]

$about

  --model DIR   local copy of amd/GLM-5.2-MXFP4 [$model] (environment: MODEL_PATH)
  --port N      where the server listens [$port] (environment: PORT)
  --gpus LIST   GPUs, at least $tp_size [$gpus] (environment: HIP_VISIBLE_DEVICES)
  --arm ARM     context parallelism, one of: $arms [$arm]

If the launch cannot succeed: one sentence and exit code 2, before anything is loaded.
END
}
