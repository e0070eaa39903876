"""Prometheus metrics of CP, beside SGLang's own and only with ``--enable-metrics``.

Nothing here waits for a device: its times are events that are read once the work behind them is done.
"""
