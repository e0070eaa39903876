"""Measuring extends on the server that will serve them, so that CP or TP is chosen by its own times.

Lowest first: ``synthetic`` (one extend, outside of any request), ``timing`` (device-synchronised, ranks in lockstep),
``key`` (what a calibration depends on), ``cache`` (its file), ``server`` (measured or cached, equal on every rank),
``report`` (what the operator reads), ``command`` (``sglang-cp calibrate``).
"""

CALIBRATE = "sglang_cp_calibrate"
"""The key in the body of POST /set_internal_state that asks for measuring anew; never a server argument."""
