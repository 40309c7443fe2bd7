"""``python -m e2e.cluster``: what it prints and answers; how programs are run and waited for."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.cluster import __main__ as command_line
from e2e.cluster import choose, docker, local, lock, packages, teardown, wheels
from e2e.cluster.current import CurrentCluster, kubeconfig_path
from e2e.cluster.errors import ClusterError, CommandFailed, MissingPrerequisite, TimedOut
from e2e.cluster.kind import KindCluster
from e2e.cluster.kind_image.places import Places
from e2e.cluster.layout import POD_RANGE, SERVICE_RANGE, Layout
from e2e.cluster.local import LocalCluster
from e2e.cluster.shell import environment, run, until
from e2e.cluster.steps import Steps
from e2e.demo import demos


class Refusing:
    """A cluster that fails in a given way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def up(self) -> None:
        """Fail."""
        raise self._error

    down = purge = up
    kubeconfig = Path("/nowhere")


@pytest.mark.parametrize(
    ("error", "code", "begins"),
    [
        (MissingPrerequisite("do this"), 2, "missing: do this"),
        (ClusterError("it broke"), 1, "failed: it broke"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "missing: room on a disk"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_code_says_whose_fault_it_is(
    error: Exception,
    code: int,
    begins: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2 is for the user to act on, 1 for us; neither shows a traceback."""
    monkeypatch.setattr(command_line, "open_cluster", lambda _: Refusing(error))

    assert command_line.main(["up"]) == code
    assert capsys.readouterr().err.startswith(begins)


def test_a_demo_on_a_machine_that_lacks_something_only_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nobody is asked what the cluster says: kubectl would first be built for that, for minutes."""

    def run(*_: object) -> dict[str, object]:
        raise MissingPrerequisite("run this as root")

    monkeypatch.setattr(sys, "argv", ["demo", "--cluster", "local"])
    monkeypatch.setattr(demos, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=15))
    monkeypatch.setattr(LocalCluster, "diagnostics", lambda *_: pytest.fail("it was asked"))

    code = demos.play("", messages=1, diagnostics=tmp_path, run=run, report=lambda *_: 0)

    assert code == 2
    assert "missing: run this as root" in capsys.readouterr().out


def test_the_cache_is_not_taken_from_a_docker_that_runs_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its processes would stay, and its namespace, with nothing left that could end them."""
    cluster = LocalCluster(Layout(state=tmp_path, run=tmp_path, cache=tmp_path / "cache"))
    monkeypatch.setattr(local, "require_root", lambda: None)
    monkeypatch.setattr(Places, "run", tmp_path)
    monkeypatch.setattr(teardown, "take_down", lambda *_: pytest.fail("it began"))

    with pytest.raises(MissingPrerequisite, match="kind_image purge"):
        cluster.purge()


def test_nothing_of_a_cluster_is_asked_for_at_the_machines_proxy() -> None:
    """The API server at 10.96.0.1 is nowhere for it; what is excepted already stays so."""
    behind = {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "example.com,localhost"}

    given = environment(behind)

    assert given["NO_PROXY"] == given["no_proxy"]
    assert given["no_proxy"].split(",")[:2] == ["example.com", "localhost"]
    assert {"127.0.0.1", SERVICE_RANGE, POD_RANGE, ".svc"} < set(given["no_proxy"].split(","))
    assert environment({"https_proxy": "", "A": "b"}) == {"https_proxy": "", "A": "b"}


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """As everywhere."""
    with pytest.raises(SystemExit) as exited:
        command_line.main(["up", "--cluster", "minikube"])

    assert exited.value.code == 2
    assert "minikube" in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands a newcomer needs, in their order."""
    with pytest.raises(SystemExit):
        command_line.main(["--help"])

    assert "python -m e2e.cluster doctor" in capsys.readouterr().out


def test_status_names_every_component_that_does_not_run() -> None:
    """A word for each, not a JSON dump."""
    status = {
        "kind": "local",
        "up": False,
        "kubeconfig": "/k",
        "nodes": {"node-1": False},
        "components": {"etcd": [7], "kubelet-node-1": []},
        "state": "/s",
        "cache": "/c",
    }

    text = command_line.describe(status)

    assert "local cluster: not up" in text
    assert "does not run" in next(line for line in text.splitlines() if "kubelet" in line)
    assert "pid 7" in text


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("local", LocalCluster), ("kind", KindCluster), ("current", CurrentCluster)],
)
def test_each_kind_opens_its_cluster_without_starting_it(kind: str, expected: type) -> None:
    """`open_cluster` touches nothing."""
    assert isinstance(choose.open_cluster(kind), expected)


@pytest.mark.parametrize(("trouble", "kind"), [("", "kind"), ("start it", "local")])
def test_auto_is_kind_only_where_a_docker_daemon_answers(
    trouble: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A docker program without a daemon is no Docker."""
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/kind")
    monkeypatch.setattr(docker, "find_trouble", lambda: trouble)

    assert choose.automatic()[0] == kind


def test_the_current_cluster_is_never_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when asked to."""
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'mine'}:{tmp_path / 'other'}")
    cluster = CurrentCluster(steps=Steps(io.StringIO()))

    assert cluster.kubeconfig == tmp_path / "mine"
    cluster.down()
    cluster.purge()
    for forbidden in (cluster.stop_api_server, cluster.start_api_server):
        with pytest.raises(ClusterError, match="not ours"):
            forbidden()


def test_kubeconfig_is_where_kubectl_looks() -> None:
    """The variable first, then the home directory."""
    assert kubeconfig_path({"HOME": "/home/me"}) == Path("/home/me/.kube/config")


def test_steps_are_plain_lines_with_durations() -> None:
    """Readable in a log file: no control characters, one line each."""
    out = io.StringIO()
    steps = Steps(out)

    with pytest.raises(ValueError, match="x"), steps.step("build"):
        raise ValueError("x")

    first, second = out.getvalue().splitlines()
    assert first.endswith("start  build")
    assert "failed build (" in second
    assert out.getvalue().replace("\n", "").isprintable()


def test_a_cluster_in_use_is_known_to_other_processes(tmp_path: Path) -> None:
    """And free again when its user has died, whatever it left undone."""
    path = tmp_path / "uses"
    script = "import sys, time; from pathlib import Path; from e2e.cluster import lock; "
    script += "lock.use(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=wheels.ROOT) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert lock.used_elsewhere(path)
        user.kill()

    assert not lock.used_elsewhere(path)


def test_our_own_use_is_let_go_of(tmp_path: Path) -> None:
    """Who uses a cluster may still take it down."""
    path = tmp_path / "uses"
    lock.use(path)
    lock.use(path)
    assert lock.used_elsewhere(path)

    lock.let_go(path)

    assert not lock.used_elsewhere(path)


def test_a_failed_command_shows_what_it_printed() -> None:
    """Standard error last: the reason is at the end."""
    with pytest.raises(CommandFailed, match=r"exit code 3\nout\n\nerr") as raised:
        run("sh", "-c", "echo out; echo err >&2; exit 3")

    assert raised.value.code == 3


def test_a_failed_command_with_a_log_shows_its_end(tmp_path: Path) -> None:
    """With the path, for the rest of it."""
    log = tmp_path / "x.log"

    with pytest.raises(CommandFailed, match="last line") as raised:
        run("sh", "-c", "seq 100; echo last line; exit 1", log=log)

    assert str(log) in str(raised.value)
    assert "\n1\n" not in str(raised.value)


def test_a_command_that_hangs_is_killed() -> None:
    """Its deadline is an error even when failures are not."""
    with pytest.raises(CommandFailed, match="did not finish in time"):
        run("sleep", "60", timeout_s=0.1, check=False)


def test_an_absent_program_is_a_failure_with_its_name() -> None:
    """Not a traceback from deep inside."""
    with pytest.raises(CommandFailed, match="no-such-program"):
        run("no-such-program")


def test_waiting_ends_with_what_was_waited_for() -> None:
    """And with the detail that explains it."""
    with pytest.raises(TimedOut, match=r"rain: not within 0 s\nit is dry"):
        until("rain", lambda: None, timeout_s=0, detail=lambda: "it is dry")


def test_packages_we_installed_are_remembered_across_runs(tmp_path: Path) -> None:
    """Purge removes them all, whenever they came."""
    layout = Layout(state=tmp_path, run=tmp_path, cache=tmp_path)

    packages.record(layout, {"b"})
    packages.record(layout, {"a", "b"})

    assert packages.recorded(layout) == {"a", "b"}


def test_a_program_somewhere_else_needs_no_package() -> None:
    """Any program of that name will do."""
    assert packages.missing({"dash": "sh", "none": "no-such"}) == ["none"]


def test_a_plugin_is_not_taken_for_a_program_of_the_same_name() -> None:
    """``bridge`` of iproute2 is on the PATH; the runtime looks for its own in one directory."""
    assert packages.missing({"plugins": "/no/such/directory/sh"}) == ["plugins"]


def test_the_plugins_are_looked_for_where_the_runtime_will() -> None:
    """Each absolute path of the table is below the directory that containerd is told."""
    files = [sign for sign in packages.CLUSTER_PACKAGES.values() if sign.startswith("/")]

    assert files
    assert all(Path(each).parent == packages.CNI_PLUGINS for each in files)
