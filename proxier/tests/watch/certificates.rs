//! Certificates that Go's TLS accepts.

use std::path::{Path, PathBuf};

use api_server::{ApiServer, tls};
use proxier::testing::watch::WatchConfig;
use serde_json::{Value, json};

use crate::credentials::{kubeconfig, with_kubeconfig};
use crate::follower::Follower;
use crate::objects::service;

/// Writes a kubeconfig for a server with this authority and a user with this certificate.
fn config(
    folder: &Path,
    server: &ApiServer,
    authority: &str,
    client: Option<tls::Identity>,
) -> WatchConfig {
    let write = |name: &str, text: &str| -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let mut user = json!({});
    if let Some(client) = client {
        user["client-certificate"] = json!(write("client.pem", client.certificate));
        user["client-key"] = json!(write("client.key", client.key));
    }
    let mut text: Value = serde_json::from_str(&kubeconfig("", &user)).unwrap();
    text["clusters"][0]["cluster"] =
        json!({"server": server.url(), "certificate-authority": write("ca.pem", authority)});
    with_kubeconfig(&write("kubeconfig", &text.to_string()))
}

#[test]
fn a_client_certificate_of_version_1_or_on_p521_is_used() {
    for client in [tls::CLIENT, tls::CLIENT_V1, tls::CLIENT_P521] {
        let server = ApiServer::start_secure();
        server.configure(|behaviour| behaviour.tokens = Some(Vec::new()));
        server.apply(service("web", 80));
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), &server, tls::AUTHORITY, Some(client));
        assert_eq!(Follower::with(config).services(), "reset [a/web]");
        assert!(server.requests()[0].has_certificate);
    }
}

#[test]
fn a_server_is_trusted_by_its_authority_or_by_its_own_certificate() {
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let not_base64 = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    let bundle = [damaged, not_base64, tls::AUTHORITY].concat();
    let own = |server: tls::Identity| [tls::CLIENT_CERTIFICATE, server.certificate].concat();
    for (identity, authority) in [
        (tls::SERVER, tls::AUTHORITY),
        (tls::SERVER, &*bundle),
        (tls::SERVER, tls::SERVER_CERTIFICATE),
        (tls::SERVER_P521, tls::AUTHORITY),
        (tls::SERVER_P521, &*own(tls::SERVER_P521)),
        (tls::SERVER_SELF_SIGNED, tls::SERVER_SELF_SIGNED.certificate),
    ] {
        let server = ApiServer::start_secure_as(identity);
        server.apply(service("web", 80));
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), &server, authority, None);
        assert_eq!(Follower::with(config).services(), "reset [a/web]");
    }
}

#[test]
fn another_server_is_not_trusted() {
    let other = tls::SERVER_SELF_SIGNED.certificate;
    for (identity, authority) in [
        (tls::SERVER, tls::SERVER_P521.certificate),
        (tls::SERVER, other),
        (tls::SERVER_SELF_SIGNED, tls::AUTHORITY),
    ] {
        let server = ApiServer::start_secure_as(identity);
        let folder = tempfile::tempdir().unwrap();
        let follower = Follower::with(config(folder.path(), &server, authority, None));
        let status = follower.until("refused", |status| status.services.failures > 0);
        let (_, why) = status.services.failed.unwrap();
        assert!(why.contains("certificate"), "{why}");
        assert_eq!(server.requests(), []);
    }
}
