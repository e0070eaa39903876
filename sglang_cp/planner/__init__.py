"""What an operator can expect of CP: published measurements, a model fitted to them, predictions and advice.

Lowest first: ``published`` (the data), ``arms``, ``prefill``, ``decode`` (parts of a system), ``system`` (what is
planned with), ``fitting`` (a published set or a calibration to a system), ``prediction``, ``break_even``, ``advice``,
``report``, ``plot``, ``command``.
"""
