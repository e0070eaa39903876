"""Differential fuzzing of CP against plain SGLang: ``python -m evals.fuzz``."""
