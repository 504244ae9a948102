"""The marks that lead from a process back to its agent and its owner."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents import marker
from sidecar.agents.marker import Owner


def test_a_token_names_its_owner() -> None:
    owner = Owner(17, 230835.5, "boot:4026")
    assert marker.owner_in(marker.token("01ABC", owner)) == owner


@given(st.text())
def test_what_is_no_token_names_nobody(text: str) -> None:
    owner = marker.owner_in(text)
    assert owner is None or text.count("/") == 3


@pytest.mark.parametrize(
    ("environ", "tokens"),
    [
        (b"SIDECAR_MARKER=a b\0X=1\0", ("a", "b")),
        (b"X=1\0SIDECAR_MARKER=a\0", ("a",)),
        (b"X=SIDECAR_MARKER=a\0", ()),
        (b"NOT_SIDECAR_MARKER=a\0", ()),
        (b"SIDECAR_MARKER=\0", ()),
        (b"", ()),
    ],
)
def test_tokens_are_found_where_the_variable_stands_and_nowhere_else(environ: bytes, tokens: tuple[str, ...]) -> None:
    assert marker.tokens_in(environ) == tokens


def test_an_agent_inside_an_agent_carries_both_tokens() -> None:
    inner = marker.extended({"SIDECAR_MARKER": "outer"}, "inner")
    assert marker.tokens_in(f"SIDECAR_MARKER={inner}\0".encode()) == ("outer", "inner")
    assert marker.extended({}, "only") == "only"


def test_a_variable_is_read_from_an_environment_block() -> None:
    assert marker.variable_in(b"A=1\0SIDECAR_PROJECT=/p=q\0", "SIDECAR_PROJECT") == "/p=q"
    assert marker.variable_in(b"A=1\0", "SIDECAR_PROJECT") is None


def test_tags_differ_and_fit_a_limit() -> None:
    tags = {marker.new_tag() for _ in range(1000)}
    assert len(tags) == 1000
    assert all(0 < tag < 1 << 62 for tag in tags)


def macos(value: bytes, *, told: int = 0) -> SimpleNamespace:
    """The C library of a Mac, as far as this asks it."""

    def sysctlbyname(name: bytes, buffer: ctypes.Array[ctypes.c_char], size: object, *_: object) -> int:
        assert name == b"kern.bootsessionuuid"
        buffer.value = value
        return told

    return SimpleNamespace(sysctlbyname=sysctlbyname)


def test_a_mac_is_asked_for_the_id_of_its_boot_which_no_clock_changes() -> None:
    assert marker.boot_session(macos(b"5E6FFEBE-0000-4000-8000-0123456789AB")) == "5E6FFEBE-0000-4000-8000-0123456789AB"


@pytest.mark.parametrize("library", [SimpleNamespace(), macos(b"", told=0), macos(b"x", told=-1)])
def test_where_nobody_knows_the_boot_there_is_no_id_of_it(library: object) -> None:
    assert marker.boot_session(library) is None


def test_without_proc_a_boot_keeps_its_id_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(path: str, **_: object) -> object:
        raise FileNotFoundError(path)

    booted = iter((1_000_000.0, 1_003_600.0))
    monkeypatch.setattr(marker, "open", no_proc, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: macos(b"5E6FFEBE-0000-4000-8000-0123456789AB"))
    monkeypatch.setattr(psutil, "boot_time", lambda: next(booted))
    assert marker.boot_id() == marker.boot_id()
