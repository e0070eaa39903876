"""Attention weights of a CP extend: shards that stay where TP put them, gathered one layer at a time."""
