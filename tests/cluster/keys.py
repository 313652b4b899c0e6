"""Keys and certificates of a throw-away control plane, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SERVER = "extendedKeyUsage=serverAuth"
_LEAVES = {
    "apiserver": (
        "/CN=kube-apiserver",
        f"subjectAltName=IP:127.0.0.1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc\n{_SERVER}",
    ),
    "kubelet-client": ("/O=system:masters/CN=kube-apiserver-kubelet-client", "extendedKeyUsage=clientAuth"),
    "kubelet-server": ("/CN=node", f"subjectAltName=IP:127.0.0.1,DNS:localhost\n{_SERVER}"),
}


def make_keys(folder: Path) -> None:
    """ca.crt, a NAME.crt and NAME.key for each server and client, and sa.key with sa.pub for tokens."""
    if shutil.which("openssl") is None:
        raise FileNotFoundError("openssl is missing: it makes the keys of the control plane; install it")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "sa", *_LEAVES):
        _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
        (folder / f"{name}.key").chmod(0o600)
    _openssl(folder, "req", "-x509", "-new", "-key", "ca.key", "-days", "30", "-subj", "/CN=test-ca", "-out", "ca.crt")
    _openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for name, (subject, extensions) in _LEAVES.items():
        (folder / f"{name}.ext").write_text(extensions)
        _openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-days", "30", *signing, "-out", f"{name}.crt")


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
