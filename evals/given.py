"""Running servers that the user names by URL: a baseline with CP off, a candidate with CP on, or one of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from evals.server import Server
from sglang_cp.errors import UsageError

_TEXTS_A_CALL = 64
BASELINE, CANDIDATE = "baseline", "candidate"


class GivenServer(Server):
    """A server that somebody else started."""

    def counters(self) -> dict[str, int] | None:
        """CP counters since start; None for a server without sglang-cp."""
        counters: dict[str, int] | None = self.info()["internal_states"][0].get("sglang_cp")
        return counters

    def require_room(self, prompt_tokens: int, answer_tokens: int, way_out: str) -> None:
        """Raise UsageError unless prompts of that length, and their answers, fit the context and the KV pool."""
        context: int = self._call("GET", "/v1/models").json()["data"][0]["max_model_len"]
        longest = min(context - answer_tokens, int(self.info()["max_req_input_len"]) - 1)
        if prompt_tokens > longest:
            raise UsageError(
                f"{self.name} takes prompts of up to {longest:,} tokens with {answer_tokens} of answer (context: "
                f"{context:,}), but there is one of {prompt_tokens:,}: use {way_out} or a longer --context-length."
            )

    def tokenize(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Token ids by the server's own tokenizer. ``special``: with those that open a prompt (BOS)."""
        tokens: list[list[int]] = []
        for start in range(0, len(texts), _TEXTS_A_CALL):
            body = {"prompt": list(texts[start : start + _TEXTS_A_CALL]), "add_special_tokens": special}
            tokens += self._call("POST", "/tokenize", json=body).json()["tokens"]
        return tokens


@contextlib.contextmanager
def given_arms(baseline: str | None, candidate: str | None) -> Iterator[list[GivenServer]]:
    """The arms, baseline first.

    Raises:
        UsageError: without a URL, or with a server that cannot play its part.
        ServerError: if one does not answer.
    """
    urls = {name: url for name, url in ((BASELINE, baseline), (CANDIDATE, candidate)) if url is not None}
    if not urls:
        raise UsageError("No server is given: pass --candidate URL (CP on), --baseline URL (CP off), or both.")
    with contextlib.ExitStack() as stack:
        arms = [stack.enter_context(contextlib.closing(GivenServer(name, url))) for name, url in urls.items()]
        for arm in arms:
            _require_part(arm)
        yield arms


def model_index_topk(server: Server, given: int | None) -> int:
    """Keys that a query attends to: as given, else from the config.json of the server's model."""
    if given is not None:
        return given
    from huggingface_hub import hf_hub_download

    info = server.info()
    model = info["model_path"]
    try:
        path = Path(model) / "config.json"
        config = json.loads((path if path.is_file() else Path(hf_hub_download(model, path.name))).read_text())
        config |= json.loads(info.get("json_model_override_args") or "{}")
        return int(config["index_topk"])
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(
            f"index_topk of {model} cannot be read here: pass --index-topk (2048 in GLM-5.x and DeepSeek V3.2)."
        ) from error


def require_parent(option: str, path: Path | None) -> None:
    """Refuse a file that could not be written in the end."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        what = f"{path} is a directory" if path.is_dir() else f"{path.parent} is not a directory"
        raise UsageError(f"{option} {path} cannot be written: {what}.")


def _require_part(arm: GivenServer) -> None:
    cp = bool(arm.info().get("enable_prefill_cp"))
    if arm.name == BASELINE and cp:
        raise UsageError(f"--baseline {arm.url} runs with CP on: give a server without --enable-prefill-cp.")
    if arm.name == CANDIDATE and not cp:
        raise UsageError(f"--candidate {arm.url} runs with CP off: start it with --enable-prefill-cp.")
    if arm.name == CANDIDATE:
        arm.cp_counters()
