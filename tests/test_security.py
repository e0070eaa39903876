"""Nothing that is read from disk or the network runs as code here: no pickle, no eval, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_cp.patching.series import read_series
from sglang_cp.pin import read_pin

CHECKOUT = Path(__file__).parents[1]
SOURCES = sorted(path for package in ("sglang_cp", "evals") for path in (CHECKOUT / package).rglob("*.py"))

MODULES = {
    "pickle": "runs what it reads",
    "_pickle": "runs what it reads",
    "cPickle": "runs what it reads",
    "cloudpickle": "runs what it reads",
    "dill": "runs what it reads",
    "joblib": "pickles",
    "shelve": "pickles",
    "marshal": "crashes on what it cannot read",
    "xmlrpc": "parses entities",
}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load": "pickles unless told otherwise: safetensors does not",
    "torch.save": "pickles",
    "numpy.load": "may pickle",
    "np.load": "may pickle",
    "yaml.load": "may make any object: safe_load",
    "yaml.unsafe_load": "makes any object",
    "yaml.full_load": "may make objects",
    "os.system": "a shell",
    "os.popen": "a shell",
    "subprocess.getoutput": "a shell",
    "subprocess.getstatusoutput": "a shell",
    "tempfile.mktemp": "a name that another may take first",
}
SUFFIXES = {
    "all_gather_object": "torch pickles it",
    "gather_object": "torch pickles it",
    "broadcast_object_list": "torch pickles it",
    "scatter_object_list": "torch pickles it",
    "send_object_list": "torch pickles it",
    "recv_object_list": "torch pickles it",
    "import_module": "imports by a name that may come from data",
    "read_pickle": "pickles",
    "to_pickle": "pickles",
}
KEYWORDS = {("shell", True), ("trust_remote_code", True), ("allow_pickle", True), ("weights_only", False)}
EXCEPTIONS = {
    ("sglang_cp/patching/check.py", "compile"): "looks for syntax errors in a patched file, and runs nothing",
}
"""(file, what it does) -> why it may."""


def findings(tree: ast.AST) -> Iterator[str]:
    """What a module does that nothing here should."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if name.partition(".")[0] in MODULES or name in CALLS)
            yield from (name for name in names if name.rpartition(".")[2] in SUFFIXES)
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            yield node.id
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            module, _, attribute = name.rpartition(".")
            if name in CALLS or attribute in SUFFIXES or (module == "builtins" and attribute in BUILTINS):
                yield name
        elif isinstance(node, ast.keyword):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            # A value that is only known when it runs may be the wrong one too.
            known = isinstance(node.value, ast.Constant)
            if any(node.arg == name and (not known or value is wrong) for name, wrong in KEYWORDS):
                yield f"{node.arg}={ast.unparse(node.value)}"


def test_no_data_becomes_code() -> None:
    assert len(SOURCES) > 100
    found = {
        (str(path.relative_to(CHECKOUT)), what) for path in SOURCES for what in findings(ast.parse(path.read_bytes()))
    }
    assert found == set(EXCEPTIONS)


def test_patches_add_none_of_it() -> None:
    pin = read_pin()
    for patch in read_series(CHECKOUT / "patches" / pin.release, pin.release).patches:
        added = [line.strip() for diff in patch.diffs for hunk in diff.hunks for line in set(hunk.new) - set(hunk.old)]
        for line in added:
            words = {*MODULES, *(f"{name}(" for name in BUILTINS), *(f"{name}(" for name in (*CALLS, *SUFFIXES))}
            if 'importlib.import_module(f"sglang_cp.' in line:
                continue  # cp_per_batch.py: two names of this package, written in the same file
            assert not any(word in line for word in words), f"{patch.name}: {line}"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as d",
        "from os import system",
        "eval(text)",
        "f = exec",
        "builtins.eval(text)",
        "torch.load(path)",
        "yaml.load(text, Loader)",
        "dist.all_gather_object(found, mine)",
        "from torch.distributed import broadcast_object_list",
        "subprocess.run(line, shell=True)",
        "subprocess.run(line, shell=chosen)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "np.load(path, allow_pickle=True)",
        "importlib.import_module(name)",
    ],
)
def test_each_kind_would_be_found(code: str) -> None:
    assert list(findings(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["json.loads(text)", "yaml.safe_load(text)", "re.compile(text)", "model.eval()", "run(line, shell=False)"],
)
def test_what_is_fine_is_not(code: str) -> None:
    assert list(findings(ast.parse(code))) == []
