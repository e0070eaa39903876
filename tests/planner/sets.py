"""The published sets and the systems fitted to them, made once."""

from functools import cache

from sglang_cp.planner.fitting import system_from_set
from sglang_cp.planner.published import load_set

MI355X = "glm-5.2-mxfp4-mi355x-tp4"
H200 = "glm-5.2-6-layers-h200-tp2"


@cache
def published(name=MI355X):
    return load_set(name)


@cache
def system(name=MI355X):
    return system_from_set(published(name))
