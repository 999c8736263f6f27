"""``push_checkpoint`` against a stand-in of the Hub: what is sent, the card, and every way to be refused."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants

import posembed
from evaluated_models import save_causal, write_texts
from posembed import cli
from posembed.errors import ArgumentError, CheckpointError
from tiny_models import TEXT, saved, tiny_model
from together import together

TOKEN = "hf_test"


@dataclass
class Hub:
    """The repositories of a stand-in: whether each is private, and the files of the one that gets a commit. refuses:
    what of a request's path is answered with 503."""

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0
    refuses: str = "none"

    def answer(self, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials"}
        if self.refuses in path:
            return 503, {"error": "Overloaded"}
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
                elif line["key"] == "deletedFile":
                    del self.files[line["value"]["path"]]
            self.commits += 1
            return 200, {"commitUrl": f"{self.address}/{name}/commit/1", "commitOid": "1", "hookOutput": ""}
        if name not in self.private:
            return 404, {"error": "Repository not found"}
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
            if status == 404:
                self.send_header("x-error-code", "RepoNotFound")
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
    return run(hub, "push", *arguments, token=token)


def run(hub: Hub | str, *arguments: object, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, with the stand-in in place of the Hub."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
        patched.setattr(constants, "ENDPOINT", hub if isinstance(hub, str) else hub.address)
        patched.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
        patched.setenv("HF_TOKEN", token)
        patched.setattr(sys, "argv", ["posembed", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return subprocess.CompletedProcess(sys.argv, int(ended.value.code or 0), out.getvalue(), err.getvalue())


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
    "---\rlicense: mit\r---\r# Words\r",
    "---\nlicense: mit\n---\n# Code\r\n# Words\n",
    "# Words",
    '---\n"tags": [bert]\nlicense: mit\n---\n# Words\n',
    "---\nlanguage: no\nversion: 1.10  # of the data\nempty: null\n---\n# Gr\u00fc\u00dfe\n",
    "---\ntags:\n- bert\nlanguage:\n- no\n# a remark\nprompt: |-\n  tags: none\n\n  end\n---\n# Words\n",
    "---\ntags:\n\n# of the list\n- bert\n\n# another\nlicense: mit\n---\n# Words\n",
    "---\nmodel-index:\n- name: a\n  results: []\n- name: b\n  mine: 1\n  results: []\n---\n# Words\n---\nx: y\n---\n",
)


@together("card", CARDS)
def test_each_line_of_a_card_stays(card: str, resized: Path) -> None:
    (resized / "README.md").write_bytes(card.encode())
    planned = posembed.push_checkpoint(resized, "me/x", dry_run=True).card
    held, lines = card.lstrip("\ufeff").splitlines(), planned.splitlines()
    assert {*held} - {*lines} <= {"tags:", "- bert", "", "# of the list", '"tags": [bert]'}
    assert sum("tags" in line.partition(":")[0] and line[0] != " " for line in lines) == 1
    data = ModelCard(planned).data.to_dict()
    assert {"posembed", "position-embeddings"} <= set(data["tags"])
    assert ("license" in data) == ("license" in card)
    assert lines[-1] == held[-1]
    if card.count("\r") == card.count("\r\n") > 0:  # the ends of the lines stay
        every = card.count("\r") == card.count("\n")
        assert planned.count("\r") == (planned.count("\n") if every else card.count("\r"))
    else:
        assert "\r" not in planned


def test_weights_that_a_loader_would_take_instead_go_in_the_same_commit(hub: Hub, resized: Path) -> None:
    """A single file wins over shards; a file of another model, or for another program, is not ours to delete."""
    old = ("pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "model-1-of-2.safetensors")
    others = ("onnx/model.onnx", "other/model.safetensors", "adapter_model.safetensors", "merges.txt", "a/config.json")
    hub.private["me/longer"] = True
    hub.files |= dict.fromkeys((*old, *others, "config.json"), b"old")
    done = push(hub, resized, "me/longer")
    assert hub.commits == 1, done.stderr
    assert {*hub.files} == {"README.md", "config.json", "model.safetensors", "posembed.json", *others}
    for name in old:
        assert f"deleted  {name}, with other weights\n" in done.stdout
    assert all((f"stays  {name}," in done.stdout) == (name.endswith(("onnx", "safetensors"))) for name in others)
    os.rename(resized / "model.safetensors", resized / "model-00001-of-00001.safetensors")
    (resized / "model.safetensors.index.json").write_text("{}")
    assert push(hub, resized, "me/longer").returncode == 0
    assert "model.safetensors" not in hub.files
    assert push(hub, resized / "model-00001-of-00001.safetensors", "me/longer").returncode == 0
    assert "model.safetensors.index.json" in hub.files


def test_resize_and_tune_upload_what_they_write(hub: Hub, tmp_path: Path) -> None:
    source, texts = tmp_path / "source", tmp_path / "texts"
    save_causal(source, positions=64)
    write_texts(texts, number=24, words=300)
    size = ("--length", 128)
    for name, said in (("longer", "such as owner/longer"), ("me/open", "exists and is public")):
        hub.private["me/open"] = False
        done = run(hub, "resize", source, tmp_path / "out", *size, "--push", name)
        assert said in done.stderr
    assert "give the name" in run(hub, "resize", source, tmp_path / "out", *size, "--public").stderr
    planned = run(hub, "resize", source, tmp_path / "out", *size, "--push", "me/a", "--dry-run", token="")
    assert planned.stderr.startswith(f"to upload: posembed push {tmp_path / 'out'} me/a (--dry-run")
    assert not (tmp_path / "out").exists()
    hub.refuses = "/commit/"
    done = run(hub, "resize", source, tmp_path / "out", *size, "--push", "me/a", "--public")
    assert done.stderr.endswith(f"is written; to upload it: posembed push {tmp_path / 'out'} me/a --public\n")
    hub.refuses = "none"
    done = run(hub, "resize", source, tmp_path / "again", *size, "--push", "me/b", "--json")
    assert json.loads(done.stdout)["push"]["url"].endswith("/me/b/commit/1")
    assert hub.private == {"me/open": False, "me/a": False, "me/b": True}
    assert hub.files["model.safetensors"] == (tmp_path / "again" / "model.safetensors").read_bytes()
    tune = ("tune", source, tmp_path / "tuned", "--text", texts, *size, "--steps", 1, "--push", "me/c")
    for _ in range(2):  # a finished result is only uploaded again
        done = run(hub, *tune)
        assert done.stdout.endswith("/me/c/commit/1\n"), done.stderr
    assert hub.files["model.safetensors"] == (tmp_path / "tuned" / "model.safetensors").read_bytes()
    assert hub.commits == 3


def test_the_card_of_a_repository_stays(hub: Hub, resized: Path) -> None:
    hub.private["me/longer"] = True
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
    assert "continue training" not in repr(planned)


def test_the_state_of_a_training_is_called_so(resized: Path) -> None:
    for state in ("optimizer.pt", "checkpoint-5/rng_state_0.pth"):
        (resized / state).parent.mkdir(exist_ok=True)
        (resized / state).write_bytes(b"")
    said = repr(posembed.push_checkpoint(resized, "me/x", dry_run=True))
    assert "checkpoint-5/rng_state_0.pth, optimizer.pt: needed only to continue training" in said


def test_a_card_with_broken_metadata_is_refused(resized: Path) -> None:
    (resized / "README.md").write_text("---\nlicense: [mit\n---\n")
    with pytest.raises(CheckpointError, match=r"README\.md: its metadata cannot be read"):
        posembed.push_checkpoint(resized, "me/x", dry_run=True)
