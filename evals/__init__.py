"""Evaluations of a served model: parity of CP with plain SGLang."""
