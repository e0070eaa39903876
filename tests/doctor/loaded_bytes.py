"""Loads a checkpoint in SGLang's own model runner, on the CPU platform, and writes each rank's bytes.

usage: python -m tests.doctor.loaded_bytes MODEL OUT TP_SIZE NCCL_PORT [SGLang's arguments]

OUT/RANK.json: bytes of the model's tensors, tokens of the KV pool, and the bytes that its tensors take.
"""

import argparse
import json
import sys
from pathlib import Path

import torch


def load(rank: int, out: Path, arguments: list[str], nccl_port: int) -> None:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    from sglang_cp.memory import weight_bytes

    load_plugins()
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    server_args = ServerArgs.from_cli_args(parser.parse_args(arguments))
    runner = ModelRunner(
        model_config=ModelConfig.from_server_args(server_args),
        mem_fraction_static=server_args.mem_fraction_static,
        gpu_id=rank,
        tp_rank=rank,
        tp_size=server_args.tp_size,
        moe_ep_rank=0,
        moe_ep_size=1,
        pp_rank=0,
        pp_size=1,
        nccl_port=nccl_port,
        server_args=server_args,
    )
    runner.alloc_memory_pool()
    pool = runner.token_to_kv_pool
    sizes = {
        "weights": weight_bytes(runner.model),
        "pool_tokens": runner.max_total_num_tokens,
        "pool": sum(tensor.nbytes for tensor in (*pool.kv_buffer, *pool.index_k_with_scale_buffer)),
    }
    (out / f"{rank}.json").write_text(json.dumps(sizes), encoding="utf-8")


def main() -> None:
    model, out, tp_size, nccl_port, *rest = sys.argv[1:]
    arguments = ["--model-path", model, "--tp-size", tp_size, "--device", "cpu", "--dtype", "bfloat16", *rest]
    # Ends all ranks, and says why, if one fails.
    torch.multiprocessing.spawn(load, (Path(out), arguments, int(nccl_port)), int(tp_size))


if __name__ == "__main__":
    main()
