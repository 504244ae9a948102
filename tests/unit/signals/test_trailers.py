"""The content of signal files: what is written is read back, and nothing that is read can raise."""

from __future__ import annotations

import datetime
import os
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.model import ulid
from sidecar.signals.files import MAX_BYTES, Trailers, compose, new_trailers, parse, parse_timestamp, timestamp

quick = settings(deadline=None, database=None)

ULIDS = st.text(alphabet="0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=25, max_size=25).map(lambda text: "0" + text)
MOMENTS = st.integers(0, 2**33).map(timestamp)
WORDS = st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable() and text == text.strip())
# Both floats and whole numbers; a whole one is written without its point.
SECONDS = st.one_of(st.integers(1, 10**9).map(float), st.floats(1e-6, 1e9))
SIGNED = st.builds(
    Trailers,
    signal_id=ULIDS,
    requested_at=st.none() | MOMENTS,
    requested_by=st.none() | WORDS,
    run_id=st.none() | ULIDS,
    expires_at=st.none() | MOMENTS,
    timeout_s=st.none() | SECONDS,
)
NAMES = ["Signal-Id", "Requested-At", "Requested-By", "Run", "Expires", "Timeout", "Something-Else"]
TRAILER_LINES = st.sampled_from(
    [
        "Run: the tests first",
        "Signal-Id: x",
        "Timeout: 5",
        "Expires: soon",
        "Requested-By: me",
        "Note: a colon",
        "",
        "\r",
        "a",
    ]
)
REASONS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.lists(TRAILER_LINES, max_size=6).map("\n".join),
    st.lists(TRAILER_LINES, max_size=6).map("\r\n".join),
)


@given(REASONS, SIGNED)
@example("Tests are red on main", Trailers(signal_id="0" * 26))
@example("first\n\nSignal-Id: forged", Trailers(signal_id="0" * 26))
@example("first\r\n\r\nTimeout: 5", Trailers(signal_id="0" * 26))
@example("", Trailers(signal_id="0" * 26))
@example("nul \0 inside", Trailers(signal_id="0" * 26))
@settings(quick, max_examples=400)
def test_what_is_written_is_read_back(reason: str, given_trailers: Trailers) -> None:
    content = compose(reason, given_trailers)
    assert parse(content) == (reason.strip(), given_trailers)


@given(st.binary(max_size=400))
@example(b"\0" * 10)
@example(b"Expires: \xff\xff")
@example(b"Expires: 0001-01-01T00:00:00+23:59")
@example(b"Expires: 9999-12-31T23:59:59-23:59")
@example(b"Timeout: 1e999")
@example(b"Timeout: nan")
@example(b"Timeout: " + b"9" * 5000)
@example(b"\n\n\n\n")
@example(b":")
@settings(quick, max_examples=400)
def test_arbitrary_bytes_never_raise(content: bytes) -> None:
    reason, found = parse(content)
    assert isinstance(reason, str)
    assert repr(found).startswith("Trailers(")


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=30)), max_size=4))
@quick
def test_arbitrary_values_of_trailers_never_raise_and_never_become_something_else(lines: list[tuple[str, str]]) -> None:
    content = "why\n\n" + "\n".join(f"{name}: {value}" for name, value in lines)
    reason, found = parse(content.encode(errors="replace"))
    if reason == "why" and lines:
        assert found.timeout_s is None or found.timeout_s > 0
        assert found.run_id is None or ulid.is_valid(found.run_id)
        assert found.expires_at is None or parse_timestamp(found.expires_at) is not None


def test_the_format_is_the_one_of_the_contract() -> None:
    given_trailers = Trailers(
        signal_id="01JCAAAAAAAAAAAAAAAAAAAAAA",
        requested_at="2026-11-15T10:00:00Z",
        requested_by="ops@build7",
        run_id="01JCBBBBBBBBBBBBBBBBBBBBBB",
        expires_at="2026-11-15T11:00:00Z",
        timeout_s=300.0,
    )
    assert compose("Tests are red on main", given_trailers).decode() == (
        "Tests are red on main\n\n"
        "Signal-Id: 01JCAAAAAAAAAAAAAAAAAAAAAA\nRequested-At: 2026-11-15T10:00:00Z\nRequested-By: ops@build7\n"
        "Run: 01JCBBBBBBBBBBBBBBBBBBBBBB\nExpires: 2026-11-15T11:00:00Z\nTimeout: 300\n"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"why\n\nRun: the tests first\n",
        b"why\n\nSignal-Id: 1\nand more\n",
        b"why\n\nSignal-Id: 1\nUnknown: x\n",
        b"why\n\nTimeout: soon\n",
        b"why\n\nTimeout: -1\n",
        b"why\n\nTimeout: 0\n",
        b"why\n\nExpires: tomorrow\n",
        b"why\n\nSignal-Id: 1\nSignal-Id: 2\n",
        b"why\n\nSignal-Id: two words\n",
        b"why\nSignal-Id: 1\n",
    ],
)
def test_a_last_paragraph_counts_as_trailers_only_if_every_line_of_it_is_one(content: bytes) -> None:
    assert parse(content) == (content.decode().strip(), Trailers())


def test_trailers_are_known_whatever_the_case_and_the_line_ends_and_text_whatever_its_encoding() -> None:
    for text in ("why\n\nsignal-id: 7\nTIMEOUT:5\n", "why\r\n\r\nSignal-ID: 7\r\ntimeout: 5\r\n"):
        assert parse(text.encode()) == ("why", Trailers(signal_id="7", timeout_s=5.0))
    assert parse(b"Signal-Id: 7\n") == ("", Trailers(signal_id="7"))
    assert parse(b"caf\xe9 is closed") == ("caf\ufffd is closed", Trailers())


@pytest.mark.parametrize(
    "content", [b"", b" \n\t\n", b"\0", b"text and \0 nul", b"\xff\xfe\x80", b"\x89PNG\r\n\x1a\n\0\0", b"\x01\x02"]
)
def test_empty_and_binary_content_is_no_reason(content: bytes) -> None:
    assert parse(content) == ("", Trailers())


def test_not_more_than_64_kib_is_looked_at_and_trailers_beyond_do_not_count() -> None:
    content = b"a" * (MAX_BYTES - 20) + b"\n\nSignal-Id: 7\n"
    assert parse(content)[1] == Trailers(signal_id="7")
    head = b"a" * (MAX_BYTES - 15) + b"\n\nSignal-Id: 7\n"
    assert len(head) == MAX_BYTES
    reason, found = parse(head + b"\nand this is the last paragraph")
    assert found == Trailers()
    assert len(reason) <= MAX_BYTES


@pytest.mark.parametrize("letter", ["Z", "é", "😀"])
def test_a_reason_that_is_too_long_is_cut_between_characters_and_keeps_its_trailers(letter: str) -> None:
    content = compose(letter * 1_000_000, Trailers(signal_id="7", timeout_s=1.5))
    reason, found = parse(content)
    assert found == Trailers(signal_id="7", timeout_s=1.5)
    assert MAX_BYTES - len(letter.encode()) < len(content) <= MAX_BYTES
    kept, _, remark = reason.partition("\n")
    assert set(kept) == {letter}
    assert remark == "[cut: the reason was longer than a signal file may be]"


def test_an_argument_that_was_not_utf_8_is_written_as_the_bytes_it_was() -> None:
    assert compose(os.fsdecode(b"caf\xe9"), Trailers(signal_id="7")).startswith(b"caf\xe9\n\n")


def test_a_reason_that_cannot_be_encoded_at_all_still_makes_a_signal() -> None:
    assert parse(compose("half \ud800 pair", Trailers(signal_id="7"))) == ("half ? pair", Trailers(signal_id="7"))


def test_signed_says_who_when_and_which() -> None:
    before = int(time.time())
    made = new_trailers(run_id="0" * 26, timeout_s=2.0)
    assert ulid.is_valid(made.signal_id or "")
    assert made.requested_by is not None
    assert made.requested_by.endswith(f"@{os.uname().nodename}")
    assert made.requested_at is not None
    assert before <= (parse_timestamp(made.requested_at) or 0) <= time.time()
    assert (made.run_id, made.timeout_s, made.expires_at) == ("0" * 26, 2.0, None)
    assert parse(compose("why", made)) == ("why", made)


@given(st.datetimes(timezones=st.just(datetime.UTC), min_value=datetime.datetime(1970, 1, 1)))  # noqa: DTZ001
@quick
def test_any_moment_survives_the_trip_to_text_and_back(when: datetime.datetime) -> None:
    seconds = when.replace(microsecond=0).timestamp()
    assert parse_timestamp(timestamp(seconds)) == seconds


def test_timestamps_are_utc_to_the_second_and_read_back() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00Z"
    assert parse_timestamp("1970-01-01T00:00:10Z") == 10
    assert parse_timestamp("1970-01-01T01:00:10+01:00") == 10
    assert parse_timestamp("1970-01-01T00:00:10") == 10, "a moment without a zone is UTC, on any machine"
    assert parse_timestamp("yesterday") is None
