"""What `doctor` says of machines that no test here runs on."""

from __future__ import annotations

from sidecar.service import doctor


def test_what_is_unproven_outside_of_linux_is_told_there_and_only_there() -> None:
    assert list(doctor._platform("linux")) == []
    (told,) = doctor._platform("darwin")
    assert (told.topic, told.state) == ("platform", "note")
    assert told.text.startswith("macOS: sidecar is tested on Linux only")
    assert "launchd" in told.text
    assert "survivors" in told.advice
