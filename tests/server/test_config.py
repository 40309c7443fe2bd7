"""Settings: a file, the environment over it, and refusals that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.server.config import ConfigError, load, resolve

REQUIRED = {
    "DLEDGER_NAME": "orders-0",
    "DLEDGER_GROUP": "orders",
    "DLEDGER_DATA_DIR": "/data",
    "DLEDGER_ADVERTISE_HOST": "10.0.0.1",
}


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """The ConfigMap is the same for all pods; what differs comes from the pod."""
    path = tmp_path / "node.toml"
    path.write_text('name = "from-file"\ntick_ms = 20\n')

    settings = load(path, REQUIRED)

    assert (settings.name, settings.tick_ms) == ("orders-0", 20)


@pytest.mark.parametrize("key", ["name", "group", "data_dir", "advertise_host"])
def test_a_missing_key_is_named(key: str) -> None:
    """Nothing is guessed."""
    environ = {k: v for k, v in REQUIRED.items() if k != f"DLEDGER_{key.upper()}"}

    with pytest.raises(ConfigError) as refusal:
        load(None, environ)

    assert refusal.value.key == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("client_port", "70000"),
        ("peer_port", "http"),
        ("tick_ms", "0"),
        ("durability", "maybe"),
        ("auto_create_topics", "perhaps"),
        ("peer_host", "orders-0.example"),
        ("advertise_host", ""),
        ("name", ""),
        ("election_timeout_ticks", "5"),
        ("election_handicap_ticks", "81"),
        ("tls_cert_file", "/tls.crt"),
        ("segment_bytes", "12"),
        ("door_processes", "5"),
    ],
)
def test_a_broken_value_is_refused(key: str, value: str) -> None:
    """Out of bounds, of another type, or at odds with another key."""
    with pytest.raises(ConfigError):
        load(None, {**REQUIRED, f"DLEDGER_{key.upper()}": value})


def test_doors_are_of_our_own_server_alone() -> None:
    """The library's has none; the sentence says so."""
    doors = {"DLEDGER_DOOR_PROCESSES": "1"}

    assert load(None, {**REQUIRED, **doors}).door_processes == 1
    with pytest.raises(ConfigError, match="door_processes: goes with client_server native alone"):
        load(None, {**REQUIRED, **doors, "DLEDGER_CLIENT_SERVER": "grpc"})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("tick_millis = 20", "tick_millis"),
        ("tick_ms = ", "config"),
        ('tick_ms = "x"', "tick_ms"),
        ("tick_ms = true", "tick_ms"),
        ("name = 3", "name"),
    ],
)
def test_a_broken_file_is_refused_by_the_keys_name(tmp_path: Path, text: str, key: str) -> None:
    """Unknown keys are refused, too: a typing error must not become a default."""
    path = tmp_path / "node.toml"
    path.write_text(text)

    with pytest.raises(ConfigError) as refusal:
        load(path, {k: v for k, v in REQUIRED.items() if k != "DLEDGER_NAME" or key != "name"})

    assert refusal.value.key == key


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """With its path and the system's reason."""
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load(tmp_path / "absent.toml", REQUIRED)


def test_an_unknown_environment_setting_is_refused() -> None:
    """So is a typing error there."""
    with pytest.raises(ConfigError, match="DLEDGER_TICKMS"):
        load(None, {**REQUIRED, "DLEDGER_TICKMS": "5"})


def test_an_advertised_name_becomes_an_address() -> None:
    """Routes can name several nodes only by IPv4 address."""
    assert resolve("localhost", wait_s=0) == "127.0.0.1"


@pytest.mark.found
@pytest.mark.parametrize("key", ["listen_host", "advertise_host", "peer_host"])
@pytest.mark.parametrize("host", ["::1", "::", "fd00::1", "[::1]"])
def test_an_ipv6_address_is_refused_at_once_by_the_keys_name(key: str, host: str) -> None:
    """found: bugs 6. After a minute, or by the system's words alone, where it names a setting."""
    with pytest.raises(ConfigError, match=f"{key}: must be an IPv4 address, not ") as refusal:
        load(None, {**REQUIRED, f"DLEDGER_{key.upper()}": host})

    assert refusal.value.key == key


def test_a_name_without_an_address_is_refused_by_the_keys_name() -> None:
    """After it was given time to appear."""
    waits: list[float] = []

    with pytest.raises(ConfigError, match="advertise_host"):
        resolve("nowhere.invalid", wait_s=0.01, sleep=waits.append)
