"""Who has no business at a coordinator: folders of sites with certificates that are none of ours, or too old."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from coterie.deployment.nvflare import operator_commands as nvflare
from coterie.deployment.nvflare import provisioning


def greet(config, root=None, pair=None, text=b"GET /f3 HTTP/1.1\r\n\r\n"):
    """What the coordinator's port says to a connection of this kind; raises where it is refused."""
    with socket.create_connection((config.host, config.port), timeout=5.0) as plain:
        if root is None:
            plain.sendall(text)
            return plain.recv(100)
        context = ssl.create_default_context(cafile=root)
        context.check_hostname = False
        if pair is not None:
            context.load_cert_chain(*pair)
        with context.wrap_socket(plain) as wrapped:
            wrapped.sendall(text)
            return wrapped.recv(100)


def of_another_authority(deployed, folder, name):
    """A site of our name, with the certificate of another federation, sent to our coordinator."""
    nvflare.init(folder, deployed.config)
    site = folder / "sites" / name
    deployed.config.write(site)
    return site


def unknown(deployed, name):
    """A site whose certificate is of our authority, but that the coordinator's configuration does not know."""
    provisioning.provision(
        deployed.root, deployed.config.name, deployed.config.host, deployed.config.port, [*deployed.sites, name]
    )
    deployed.config.write(deployed.site(name))
    return deployed.site(name)


def expired(deployed, folder, name):
    """A site of ours whose certificate ended yesterday."""
    shutil.copytree(
        deployed.site(name) / provisioning.WORKSPACE / "startup", folder / provisioning.WORKSPACE / "startup"
    )
    shutil.copytree(deployed.site(name) / provisioning.WORKSPACE / "local", folder / provisioning.WORKSPACE / "local")
    deployed.config.write(folder)
    startup = folder / provisioning.WORKSPACE / "startup"
    (state,) = (deployed.root / "authority").glob("*/state/cert.json")
    saved = json.loads(state.read_text())
    authority = x509.load_pem_x509_certificate(saved["root_cert"].encode())
    signer = serialization.load_pem_private_key(saved["root_pri_key"].encode(), password=None)
    old = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
    key = rsa.generate_private_key(65537, 2048)
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * day)
        .not_valid_after(now - day)
        .sign(signer, hashes.SHA256())
    )
    assert made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == name
    (startup / "client.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (startup / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return folder
