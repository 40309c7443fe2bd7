"""Command line and environment of `dledger-operator`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger_operator.__main__ import main
from dledger_operator.api.policy import Policy, RoleRef
from dledger_operator.options import parse


def test_the_environment_gives_what_the_command_line_does_not() -> None:
    """The command line wins."""
    environ = {
        "DLEDGER_OPERATOR_IMAGE": "a:1",
        "DLEDGER_OPERATOR_NAMESPACES": "one, two",
        "DLEDGER_OPERATOR_LISTEN": "127.0.0.1:9",
        "DLEDGER_OPERATOR_SPARK_NODE_SELECTOR": "disk=fast,pool=spark",
        "DLEDGER_OPERATOR_ALLOWED_IMAGES": "r.example/team/,r.example/dledger",
        "DLEDGER_OPERATOR_ALLOWED_PRIORITY_CLASSES": "high",
        "DLEDGER_OPERATOR_DENIED_POD_METADATA": "k8s.v1.cni.cncf.io/",
        "DLEDGER_OPERATOR_POD_SECURITY": "overridable",
        "DLEDGER_OPERATOR_DRIVER_ROLE": "Role/drivers",
    }

    options = parse(["--image", "b:2"], environ)

    assert options.platform.image == "b:2"
    assert options.namespaces == ("one", "two")
    assert options.listen == ("127.0.0.1", 9)
    assert options.platform.spark_node_selector == {"disk": "fast", "pool": "spark"}
    assert options.platform.namespace == "default"
    assert options.platform.policy == Policy(
        allowed_images=("r.example/team/", "r.example/dledger"),
        allowed_priority_classes=("high",),
        denied_pod_metadata=("k8s.v1.cni.cncf.io/",),
        pod_security="overridable",
        driver_role=RoleRef(kind="Role", name="drivers"),
    )


def test_outside_the_cluster_no_namespace_may_reach_the_peer_port() -> None:
    """There are no pods of an operator to let in."""
    options = parse(["--image", "a", "--kubeconfig", "k", "--namespace", "ops"], {})

    assert (options.namespace, options.platform.namespace) == ("ops", "")


def test_without_options_nothing_is_loosened() -> None:
    """As the chart has it: only our own images, no priorities, restricted pods."""
    assert parse(["--image", "a:1"], {}).platform.policy == Policy()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--image"),
        (["--image", "a", "--listen", "here"], "HOST:PORT"),
        (["--image", "a", "--log-level", "LOUD"], "--log-level"),
        (["--image", "a", "--spark-node-selector", "disk"], "KEY=VALUE"),
        (["--image", "a", "--allowed-images", "registry.example"], "write registry.example/"),
        (["--image", "a", "--pod-security", "lax"], "--pod-security"),
        (["--image", "a", "--client-server", "apache"], "--client-server"),
        (["--image", "a", "--door-processes", "5"], "--door-processes"),
        (["--image", "a", "--door-processes", "1", "--client-server", "grpc"], "--door-processes"),
        (["--image", "a", "--driver-role", "drivers"], "--driver-role"),
        (["--image", "a", "--nonsense"], "--nonsense"),
    ],
)
def test_a_broken_option_ends_with_2_and_its_name(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every command of this project."""
    with pytest.raises(SystemExit) as ended:
        parse(argv, {})

    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_help_names_each_option_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the documentation of the options."""
    with pytest.raises(SystemExit):
        parse(["--help"], {})

    text = capsys.readouterr().out
    for name in ("IMAGE", "NAMESPACES", "NAMESPACE", "LEASE_NAME", "IDENTITY", "LISTEN"):
        assert f"DLEDGER_OPERATOR_{name}" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--kubeconfig", "/nonexistent"], "kubeconfig /nonexistent: No such file or directory\n"),
        (["--kubeconfig", "/"], "kubeconfig /: Is a directory\n"),
        ([], "no --kubeconfig, and this is no pod: "),
    ],
)
def test_without_a_cluster_it_ends_with_2_and_one_sentence(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is started by hand."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    code = main(["--image", "a", *argv])

    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(f"dledger-operator: {words}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"words", b"[", b"\xff\xfe", b"clusters: 1", b"current-context: a\ncontexts: [1]"],
)
def test_what_is_no_kubeconfig_is_refused_in_one_sentence(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the library's reader says to it."""
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)

    code = main(["--image", "a", "--kubeconfig", str(path)])

    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(f"dledger-operator: kubeconfig {path}: ")
    assert said.count("\n") == 1
