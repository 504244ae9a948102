"""No spelling of a secret passes, however the stream is cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents.output import MASK, Masker, Secrets

few_letters = st.text(alphabet='ab"é', min_size=1, max_size=5)


def through(secrets: Secrets, chunks: list[bytes]) -> bytes:
    masker = Masker(secrets)
    return b"".join(masker.feed(chunk) for chunk in chunks) + masker.rest()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(few_letters, max_size=3), st.text(alphabet='ab"éx', max_size=40), st.lists(st.integers(0, 60)))
def test_cutting_the_stream_anywhere_changes_nothing(words: list[str], text: str, places: list[int]) -> None:
    secrets = Secrets(words)
    data = text.encode()
    assert through(secrets, cut(data, places)) == secrets.masked(data)


@given(few_letters, st.text(alphabet="xyz ", max_size=10), st.lists(st.integers(0, 30)))
def test_a_secret_between_other_text_is_never_shown(word: str, around: str, places: list[int]) -> None:
    data = f"{around}{word}{around}".encode()
    shown = through(Secrets([word]), cut(data, places))
    assert shown == around.encode() + MASK + around.encode()


def test_of_two_secrets_that_begin_alike_the_longer_is_masked_whole() -> None:
    secrets = Secrets(["abc", "abcdef"])
    assert through(secrets, [b"1 abc", b"def 2 abc", b" 3"]) == b"1 " + MASK + b" 2 " + MASK + b" 3"


def test_the_end_of_a_secret_that_could_begin_another_is_masked() -> None:
    assert through(Secrets(["aXa"]), [b"..aXa", b".."]) == b".." + MASK + b".."


def test_what_only_looked_like_a_secret_is_shown_when_it_turns_out_not_to_be() -> None:
    masker = Masker(Secrets(["token-123"]))
    assert masker.feed(b"say tok") == b"say "
    assert masker.feed(b"yo") == b"tokyo"
    assert masker.rest() == b""


def test_an_event_is_masked_in_its_texts_and_keys_and_keeps_its_names() -> None:
    secrets = Secrets(["sk-0123456789"])
    data = {
        "step": "sk-0123456789",
        "text": "it is sk-0123456789",
        "error": {"message": "no sk-0123456789", "codes": [401, "sk-0123456789"]},
        "names": {"sk-0123456789": None},
        "waits": {"step": "sk-0123456789", "prompt": "sk-0123456789?"},
    }
    assert secrets.masked_event(data) == {
        "step": "sk-0123456789",
        "text": "it is ********",
        "error": {"message": "no ********", "codes": [401, "********"]},
        "names": {"********": None},
        "waits": {"step": "sk-0123456789", "prompt": "********?"},
    }


@pytest.mark.parametrize("secret", ["sk-0123456789", 'with "quotes"', "two\nlines", "grün-0123", "back\\slash"])
@pytest.mark.parametrize("said", [lambda secret: secret, json.dumps, lambda secret: [{secret: 1}]])
def test_a_secret_is_found_in_the_json_of_an_event_in_each_spelling(secret: str, said: Callable[[str], object]) -> None:
    secrets = Secrets([secret])
    data = {"text": said(secret)}
    assert secrets.are_in(json.dumps(data))
    assert not secrets.are_in(json.dumps(secrets.masked_event(data)))


def test_a_number_that_looks_like_a_secret_is_no_text() -> None:
    assert Secrets(["12345678"]).masked_event({"tokens": 12345678}) == {"tokens": 12345678}


def test_secrets_can_be_learned_later() -> None:
    secrets = Secrets([])
    assert not secrets
    secrets.learn(["hunter2hunter2"])
    assert secrets.masked_text("it is hunter2hunter2") == "it is ********"
    assert secrets.masked(b"hunter2hunter2") == b"********"
    assert secrets.are_in("hunter2hunter2")
