"""Moments on a device are events on a stream, whose times come in milliseconds."""

from types import SimpleNamespace

from sglang_cp.metrics.clock import DeviceClock, HostClock


class Event:
    def __init__(self, enable_timing):
        assert enable_timing
        self.stream = None

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.stream.done

    def elapsed_time(self, end):
        return end.stream.now_ms - self.stream.now_ms


def test_marks_of_a_device_are_on_the_stream_that_computes():
    early, late = (SimpleNamespace(done=done, now_ms=now) for done, now in ((True, 1000.0), (False, 3500.0)))
    clock = DeviceClock(SimpleNamespace(Event=Event, current_stream=lambda: early))
    start, end = clock.mark(), clock.mark(late)
    assert (clock.done(start), clock.done(end)) == (True, False)
    late.done = True
    assert clock.done(end)
    assert clock.seconds(start, end) == 2.5


def test_on_the_host_what_was_issued_is_done():
    clock = HostClock()
    start = clock.mark()
    end = clock.mark("any stream")
    assert clock.done(end)
    assert 0 <= clock.seconds(start, end) < 1
