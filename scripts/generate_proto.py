"""Generate node/dledger/rpc/pb from node/proto; `--check` only compares."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

_ROOT = Path(__file__).resolve().parent.parent
_PROTO = _ROOT / "node/proto/dledger/v1/dledger.proto"
_TARGET = _ROOT / "node/dledger/rpc/pb"


def generate(target: Path) -> None:
    """Write the generated modules into *target*. Raises RuntimeError when protoc refuses."""
    code = protoc.main(
        [
            "protoc",
            f"-I{_PROTO.parent}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            _PROTO.name,
        ]
    )
    if code != 0:
        raise RuntimeError(f"protoc exited with {code}")
    stub = target / "dledger_pb2_grpc.py"
    text = stub.read_text("utf-8")
    stub.write_text(
        text.replace("\nimport dledger_pb2", "\nfrom dledger.rpc.pb import dledger_pb2")
    )


def differences(target: Path) -> list[str]:
    """Return the names of generated files in *target* that are not up to date."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        return [
            path.name
            for path in sorted(Path(scratch).iterdir())
            if (target / path.name).read_text("utf-8") != path.read_text("utf-8")
        ]


def main(arguments: list[str]) -> int:
    """Generate, or compare with ``--check``."""
    if arguments == ["--check"]:
        stale = differences(_TARGET)
        if stale:
            print(f"run `make proto`: {', '.join(stale)} differ from {_PROTO.relative_to(_ROOT)}")
        return 1 if stale else 0
    generate(_TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
