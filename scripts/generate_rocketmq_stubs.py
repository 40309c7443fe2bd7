"""Generate the types of RocketMQ's messages, for mypy, from the locked SDK; `--check` compares.

The SDK ships generated modules without types and without the `.proto` files, but the modules carry
their descriptors: those are all that mypy-protobuf needs. A node still loads the SDK's own modules
(`rpc.rocketmq_stubs`); nothing in `stubs/` is imported or shipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor import FileDescriptor

from dledger.rpc.rocketmq_stubs import definition, service

_ROOT: Final = Path(__file__).resolve().parent.parent
_TARGET: Final = _ROOT / "stubs"
_PACKAGE: Final = "rocketmq/grpc_protocol"
_UNTYPED: Final = """from typing import Any

def __getattr__(name: str) -> Any: ...
"""
"""What a package of the SDK has beside its messages stays untyped, as without these files."""

_OURS: Final = (definition.DESCRIPTOR, service.DESCRIPTOR)


def generated() -> dict[str, str]:
    """Return each file's text by its path below `stubs/`. Raises RuntimeError if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", "from mypy_protobuf.main import main; main()"],  # the plugin
        input=_request().SerializeToString(),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"mypy-protobuf exited with {done.returncode}: {done.stderr.decode()}")
    response = plugin_pb2.CodeGeneratorResponse.FromString(done.stdout)
    packages = dict.fromkeys(("rocketmq/__init__.pyi", f"{_PACKAGE}/__init__.pyi"), _UNTYPED)
    return packages | {file.name: file.content for file in response.file}


def differences() -> list[str]:
    """Return the files below `stubs/` that are not what would be generated, by path."""
    wanted = generated()
    found = {
        str(path.relative_to(_TARGET)): path.read_text("utf-8") for path in _TARGET.rglob("*.pyi")
    }
    return sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )


def main(arguments: list[str]) -> int:
    """Generate, or compare with ``--check``."""
    if arguments == ["--check"]:
        stale = differences()
        if stale:
            print(f"run `make proto`: {', '.join(stale)} differ from the SDK's messages")
        return 1 if stale else 0
    for name, text in generated().items():
        path = _TARGET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


def _request() -> plugin_pb2.CodeGeneratorRequest:
    """Return what protoc would ask of its plugin.

    The SDK's files were compiled in a directory of their own; here they are named as it ships them.
    """
    request = plugin_pb2.CodeGeneratorRequest(parameter="quiet,readable_stubs")
    shipped = {file.name: f"{_PACKAGE}/{file.name}" for file in _OURS}
    for file in _with_dependencies(_OURS):
        added = request.proto_file.add()
        file.CopyToProto(added)
        added.name = shipped.get(added.name, added.name)
        added.dependency[:] = [shipped.get(name, name) for name in added.dependency]
    request.file_to_generate.extend(shipped.values())
    return request


def _with_dependencies(files: tuple[FileDescriptor, ...]) -> list[FileDescriptor]:
    """Return *files* and all that they depend on, each behind those that it needs."""
    ordered: dict[str, FileDescriptor] = {}
    for file in files:
        if file.name not in ordered:
            before = _with_dependencies(tuple(file.dependencies))
            ordered |= {each.name: each for each in (*before, file) if each.name not in ordered}
    return list(ordered.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
