"""``push_checkpoint`` against a stand-in of the Hub: what is sent, the card, and every way to be refused."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import posembed
from posembed.errors import ArgumentError, CheckpointError
from tiny_models import TEXT, saved, tiny_model
from together import together

TOKEN = "hf_test"


@dataclass
class Hub:
    """The repositories of a stand-in: whether each is private, and its files after its last commit."""

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0

    def answer(self, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials"}
        name = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            status = 409 if name in self.private else 200
            hidden = asked.get("private", asked.get("visibility") == "private")
            self.private.setdefault(name, bool(hidden))
            return status, {"url": f"{self.address}/{name}", "error": "exists" if status == 409 else None}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.commits += 1
            return 200, {"commitUrl": f"{self.address}/{name}/commit/1", "commitOid": "1", "hookOutput": ""}
        return 200, {
            "id": name,
            "private": self.private[name],
            "siblings": [{"rfilename": name} for name in self.files],
            "tags": [],
            "downloads": 0,
        }


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            status, answer = state.answer(self.path.partition("?")[0], self.rfile.read(length), self.headers)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def resized(tmp_path: Path) -> Path:
    saved(tiny_model("bert", TEXT), tmp_path / "source")
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", length=64)
    (tmp_path / "out" / ".cache").mkdir()
    (tmp_path / "out" / ".cache" / "x").write_text("hidden")
    return tmp_path / "out"


def push(hub: Hub | str, *arguments: object, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own: huggingface_hub reads the address as it is imported."""
    address = hub if isinstance(hub, str) else hub.address
    settings = {"HF_ENDPOINT": address, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1", "PATH": "", "HF_HOME": "/nowhere"}
    command = [sys.executable, "-m", "posembed", "push", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=settings | {"PYTHONPATH": ":".join(sys.path)})


def test_a_folder_goes_up_whole_in_one_commit(hub: Hub, resized: Path) -> None:
    before = {path: path.read_bytes() for path in resized.rglob("*") if path.is_file()}
    done = push(hub, resized, "me/longer")
    assert done.returncode == 0, done.stderr
    assert hub.commits == 1
    assert hub.private == {"me/longer": True}
    sent = {path.name: text for path, text in before.items() if path.parent == resized}
    card = hub.files.pop("README.md").decode()
    assert hub.files == sent
    assert before == {path: path.read_bytes() for path in resized.rglob("*") if path.is_file()}
    assert "resized from 40 to 64, from source" in card
    assert "`embeddings.position_embeddings.weight`: 40 x 32 to 64 x 32, tile" in card
    assert set(ModelCard(card).data.tags) == {"posembed", "position-embeddings"}
    assert done.stdout.endswith(f"{hub.address}/me/longer/commit/1\n")


def test_an_existing_card_keeps_its_words(hub: Hub, resized: Path) -> None:
    record = json.loads((resized / "posembed.json").read_text())
    record["resizes"][0]["source"] = "owner/short"
    (resized / "posembed.json").write_text(json.dumps(record))
    (resized / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\ntags: [bert]\n---\n\n# Mine\n\nWords.\n")
    assert push(hub, resized, "me/longer", "--public").returncode == 0
    assert hub.private == {"me/longer": False}
    card = ModelCard(hub.files["README.md"].decode())
    assert card.text.strip() == "# Mine\n\nWords."
    assert card.data.to_dict() == {
        "license": "mit",
        "base_model": "owner/short",
        "base_model_relation": "finetune",
        "tags": ["bert", "posembed", "position-embeddings"],
    }


CARDS = (
    "# Words alone\n",
    "---\nNo metadata, but a rule.\n",
    "---\nlicense: mit\n---\n# Words\n",
    "\n---\nlicense: mit\n---\n# Words\n",
    "\ufeff---\nlicense: mit\n---\n# Words\n",
    "---\r\nlicense: mit\r\n---\r\n# Words\r\n",
    "---\nlanguage: no\nversion: 1.10  # of the data\nempty: null\n---\n# Gr\u00fc\u00dfe\n",
    "---\ntags:\n- bert\nlanguage:\n- no\n# a remark\nprompt: |-\n  tags: none\n\n  end\n---\n# Words\n",
    "---\nmodel-index:\n- name: a\n  results: []\n- name: b\n  mine: 1\n  results: []\n---\n# Words\n---\nx: y\n---\n",
)


@together("card", CARDS)
def test_each_line_of_a_card_stays(card: str, resized: Path) -> None:
    (resized / "README.md").write_bytes(card.encode())
    planned = posembed.push_checkpoint(resized, "me/x", dry_run=True).card
    held = card.lstrip("\ufeff").replace("\r\n", "\n").splitlines()
    lines = planned.splitlines()
    assert {*held} - {*lines} <= {"tags:", "- bert", ""}
    data = ModelCard(planned).data.to_dict()
    assert {"posembed", "position-embeddings"} <= set(data["tags"])
    assert ("license" in data) == ("license" in card)
    assert planned.endswith(held[-1] + "\n")


def test_the_card_of_a_repository_stays(hub: Hub, resized: Path) -> None:
    hub.files["README.md"] = b"# Written on the Hub\n"
    assert push(hub, resized, "me/longer").returncode == 0
    assert hub.files["README.md"] == b"# Written on the Hub\n"
    (resized / "README.md").write_text("# Mine\n")
    assert push(hub, resized, "me/longer").returncode == 0
    assert hub.files["README.md"].endswith(b"# Mine\n")


def test_refusals_upload_nothing(hub: Hub, resized: Path, tmp_path: Path) -> None:
    hub.private |= {"me/public": False, "me/private": True}
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "notes.txt").symlink_to(resized / "config.json")
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / os.fsdecode(b"\xff.txt")).touch()
    (tmp_path / "empty").mkdir()
    for arguments, token, said in (
        ((resized, "me/public"), TOKEN, "exists and is public; pass --public"),
        ((resized, "me/private", "--public"), TOKEN, "exists and is private; leave out --public"),
        ((linked, "me/longer"), TOKEN, "outside the checkpoint"),
        ((odd, "me/longer"), TOKEN, "does not take this name"),
        ((resized, "me/longer"), "hf_other", "refuses this token (401): make one that may write"),
        ((resized, "me/longer"), "", "no token for the Hugging Face Hub"),
        ((tmp_path / "empty", "me/longer"), TOKEN, "expected a folder with files"),
        ((resized, "longer"), TOKEN, "such as owner/longer"),
        ((resized, "me/lon ger"), TOKEN, "expected the name of a repository, such as owner/model"),
    ):
        done = push(hub, *arguments, token=token)
        assert done.returncode == 1, said
        assert said in done.stderr
    assert "cannot be reached" in push("http://127.0.0.1:9", resized, "me/longer").stderr
    assert (hub.files, hub.commits) == ({}, 0)


@together("name, wrong", [("me/x", ""), ("x", "owner/x"), ("", "owner/model"), ("a/b/c", "owner/model")])
def test_a_dry_run_needs_no_network(name: str, wrong: str, resized: Path) -> None:
    if wrong:
        with pytest.raises(ArgumentError, match=wrong):
            posembed.push_checkpoint(resized, name, dry_run=True)
        return
    planned = posembed.push_checkpoint(resized, name, dry_run=True)
    assert planned.files["model.safetensors"] == (resized / "model.safetensors").stat().st_size
    assert ".cache/x" not in planned.files
    assert "nothing was uploaded (--dry-run)" in repr(planned)


def test_a_card_with_broken_metadata_is_refused(resized: Path) -> None:
    (resized / "README.md").write_text("---\nlicense: [mit\n---\n")
    with pytest.raises(CheckpointError, match=r"README\.md: its metadata cannot be read"):
        posembed.push_checkpoint(resized, "me/x", dry_run=True)
