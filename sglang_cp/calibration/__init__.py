"""Measuring extends on the server that will serve them, so that CP or TP is chosen by its own times.

Lowest first: ``synthetic`` (one extend, outside of any request), ``timing`` (device-synchronised, ranks in lockstep),
``room`` (which extends a server can hold), ``key`` (what a calibration depends on), ``cache`` (its file), ``server``
(measured or cached, equal on every rank), ``requests`` (what is asked of a server over HTTP), ``serving`` (when it
measures), ``client`` (asking), ``report`` (what the operator reads), ``command`` (``sglang-cp calibrate``).
"""

CALIBRATE = "sglang_cp_calibrate"
"""The key in the body of POST /set_internal_state that asks for measuring anew; never a server argument."""
TIME_EXTENDS = "sglang_cp_time_extends"
"""The key there whose value, a ``requests.TimingRequest``, asks for times of given extends in both modes."""
