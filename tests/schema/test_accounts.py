"""The table of ledger accounts: every row is complete, and everything that depends on it follows."""

from dataclasses import replace

import pytest

from bottleneck.analysis.host import state_of
from bottleneck.schema.accounts import ACCOUNTS, HOST_STATES, IDLE_CAUSES, Account, label_of, meaning_of, phrase_of
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.tables import ROOFLINE
from scripts.write_accounts import PAGE, page_text

_TEXTS = ("label", "meaning", "phrase", "advice")


def _missing(account: Account) -> list[str]:
    """Texts that a row lacks."""
    return [name for name in _TEXTS if not getattr(account, name).strip()]


@pytest.mark.parametrize("account", ACCOUNTS.values(), ids=lambda account: account.key)
def test_every_account_has_its_texts_and_a_known_group(account: Account) -> None:
    assert _missing(account) == []
    assert account.group in GROUPS
    assert account.advice.format(at="")


@pytest.mark.parametrize("text", _TEXTS)
def test_a_row_without_one_of_its_texts_is_found(text: str) -> None:
    field = "title" if text == "label" else text
    assert _missing(replace(ACCOUNTS["overhead.sync"], **{field: " "})) == [text]


def test_every_bound_of_a_kernel_has_one_account() -> None:
    bounds = [account.bound for account in ACCOUNTS.values() if account.bound is not None]
    assert sorted(bounds) == sorted(set(bounds))
    assert {"compute", "memory", "overhead", "communication", "transfer", "copy", "dispatch", "unknown"} == set(bounds)
    assert "bound" in ROOFLINE.columns


def test_states_of_the_host_come_first_among_the_causes_of_idle_time() -> None:
    assert IDLE_CAUSES[: len(HOST_STATES)] == HOST_STATES
    assert IDLE_CAUSES[len(HOST_STATES)] == "unknown"  # the index that a thread without any event gets
    assert state_of("annotation", "Python GC") in HOST_STATES


def test_an_account_of_another_version_is_shown_by_its_key() -> None:
    assert (label_of("overhead.warp"), meaning_of("overhead.warp"), phrase_of("overhead.warp")) == (
        "warp",
        "",
        "overhead.warp",
    )


def test_the_reference_page_holds_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run: python -m scripts.write_accounts"
