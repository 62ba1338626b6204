//! Kubeconfig files, tokens, certificates.

use std::path::Path;
use std::sync::mpsc::sync_channel;

use api_server::{ApiServer, tls};
use proxier::testing::watch::{
    self, Encoding, NodeScope, ServerLocation, Timeouts, WatchConfig, WatchMessage,
};
use serde_json::{Value, json};

use crate::follower::{Follower, PATIENCE, until};
use crate::objects::service;
use crate::watches::watches;

/// A kubeconfig for a test server.
pub(crate) fn kubeconfig(server: &str, user: &Value) -> String {
    let mut cluster = json!({"server": server});
    if server.starts_with("https:") {
        let authority = k8s_openapi::ByteString(tls::AUTHORITY.into());
        cluster["certificate-authority-data"] = json!(authority);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    })
    .to_string()
}

pub(crate) fn with_kubeconfig(path: &Path) -> WatchConfig {
    WatchConfig {
        server: ServerLocation {
            kubeconfig: Some(path.to_owned()),
            master: None,
        },
        node_name: "us".into(),
        nodes: NodeScope::All,
        encoding: Encoding::Protobuf,
        timeouts: Timeouts::default(),
        events: None,
    }
}

#[test]
fn a_rotated_token_is_used_at_once_and_an_expired_one_is_retried() {
    let server = ApiServer::start_secure();
    server.configure(|behaviour| behaviour.tokens = Some(vec!["first".into(), "second".into()]));
    server.apply(service("web", 80));
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "first\n").unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(
        &file,
        kubeconfig(&server.url(), &json!({"tokenFile": token})),
    )
    .unwrap();
    let mut config = with_kubeconfig(&file);
    // Otherwise a list follows if the server refuses requests for long after the connections broke.
    config.timeouts.outage = PATIENCE;
    let follower = Follower::with(config);
    assert_eq!(follower.services(), "reset [a/web]");
    // The other lists too: later, no token permits them.
    follower.until("synced", |status| status.is_synced());

    std::fs::write(&token, "second").unwrap();
    server.break_connections();
    until(
        "used the new token",
        || {
            let requests = server.requests();
            let last = watches(&requests, "services").last()?;
            (last.authorization.as_deref() == Some("Bearer second")).then_some(())
        },
        || server.requests(),
    );
    server.apply(service("new", 80));
    assert_eq!(follower.services(), "apply a/new");

    server.configure(|behaviour| behaviour.tokens = Some(vec!["third".into()]));
    server.break_connections();
    let status = follower.until("refused", |status| {
        status
            .services
            .failed
            .as_ref()
            .is_some_and(|(_, why)| why.contains("401"))
    });
    assert!(status.is_synced());
    std::fs::write(&token, "third").unwrap();
    server.apply(service("newer", 80));
    assert_eq!(follower.services(), "apply a/newer");
    assert_eq!(follower.status().services.lists, 1);
}

#[test]
fn a_new_server_address_is_read_from_the_kubeconfig() {
    let server = ApiServer::start_secure();
    server.apply(service("web", 80));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let user = json!({"token": "in the file"});
    std::fs::write(&file, kubeconfig(&server.url(), &user)).unwrap();
    let follower = Follower::with(with_kubeconfig(&file));
    assert_eq!(follower.services(), "reset [a/web]");
    let token = server.requests()[0].authorization.clone();
    assert_eq!(token.as_deref(), Some("Bearer in the file"));

    let moved = ApiServer::start_secure();
    moved.apply(service("moved", 80));
    moved.restore(server.revision() + 1_000);
    std::fs::write(&file, kubeconfig(&moved.url(), &user)).unwrap();
    drop(server);
    assert_eq!(follower.services(), "reset [a/moved]");
}

#[test]
fn an_invalid_configuration_is_an_error_at_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let error = |config: WatchConfig| {
        let (sender, _messages) = sync_channel::<WatchMessage>(1);
        watch::start(config, sender).unwrap_err().to_string()
    };
    let missing = error(with_kubeconfig(&file));
    let name = file.display().to_string();
    assert!(
        missing.contains(&name) && missing.contains("No such file"),
        "{missing}"
    );
    std::fs::write(&file, "{").unwrap();
    let broken = error(with_kubeconfig(&file));
    assert!(broken.contains(&name), "{broken}");
    let mut with_proxy: Value =
        serde_json::from_str(&kubeconfig("http://127.0.0.1:1", &json!({}))).unwrap();
    with_proxy["clusters"][0]["cluster"]["proxy-url"] = json!("http://x");
    std::fs::write(&file, with_proxy.to_string()).unwrap();
    let proxied = error(with_kubeconfig(&file));
    assert!(proxied.contains("proxy-url is not supported"), "{proxied}");
    let mut config = with_kubeconfig(&file);
    config.server = ServerLocation {
        kubeconfig: None,
        master: Some("ftp://x".into()),
    };
    let wrong = error(config.clone());
    assert!(
        wrong.contains("\"ftp://x\" is not the URL of an API server"),
        "{wrong}"
    );
    config.server.master = None;
    let nowhere = error(config);
    assert!(nowhere.contains("not in a cluster"), "{nowhere}");
}

/// A kubeconfig with certificates in files, as kubelet's.
pub(crate) fn secure_kubeconfig(
    directory: &Path,
    server: &ApiServer,
    authority: &str,
) -> WatchConfig {
    let write = |name: &str, text: &str| {
        let file = directory.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let user = json!({
        "client-certificate": write("client.pem", tls::CLIENT_CERTIFICATE),
        "client-key": write("client.key", tls::CLIENT_KEY),
    });
    let mut text: Value = serde_json::from_str(&kubeconfig(&server.url(), &user)).unwrap();
    let authority = write("ca.pem", authority);
    text["clusters"][0]["cluster"] =
        json!({"server": server.url(), "certificate-authority": authority});
    with_kubeconfig(&write("kubeconfig", &text.to_string()))
}

#[test]
fn a_server_may_have_the_certificate_of_another_name() {
    for server in [ApiServer::start_secure(), ApiServer::start_http2()] {
        server.apply(service("web", 80));
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("ca.pem");
        std::fs::write(&authority, tls::AUTHORITY).unwrap();
        let url = format!("https://localhost:{}", server.address().port());
        let mut file: Value = serde_json::from_str(&kubeconfig(&url, &json!({}))).unwrap();
        let cluster = &mut file["clusters"][0]["cluster"];
        cluster["certificate-authority"] = json!(authority);
        // The certificate has no other name.
        cluster["tls-server-name"] = json!("127.0.0.1");
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, file.to_string()).unwrap();
        let follower = Follower::with(with_kubeconfig(&path));
        assert_eq!(follower.services(), "reset [a/web]");
    }
}

#[test]
fn client_and_server_certificates_are_used() {
    for server in [ApiServer::start_secure(), ApiServer::start_http2()] {
        server.configure(|behaviour| behaviour.tokens = Some(Vec::new()));
        server.apply(service("web", 80));
        let directory = tempfile::tempdir().unwrap();
        let config = secure_kubeconfig(directory.path(), &server, tls::AUTHORITY);
        let follower = Follower::with(config);
        assert_eq!(follower.services(), "reset [a/web]");
        server.apply(service("web", 81));
        assert_eq!(follower.services(), "apply a/web");
        assert!(
            server
                .requests()
                .iter()
                .all(|request| request.has_certificate)
        );
    }
}

#[test]
fn a_server_certificate_of_another_authority_is_rejected_until_the_file_is_corrected() {
    let server = ApiServer::start_secure();
    server.apply(service("web", 80));
    let directory = tempfile::tempdir().unwrap();
    let config = secure_kubeconfig(directory.path(), &server, tls::CLIENT_CERTIFICATE);
    let follower = Follower::with(config);
    let status = follower.until("refused", |status| status.services.failures > 0);
    let (_, why) = status.services.failed.unwrap();
    assert!(why.contains("certificate"), "{why}");
    assert_eq!(server.requests(), []);
    std::fs::write(directory.path().join("ca.pem"), tls::AUTHORITY).unwrap();
    assert_eq!(follower.services(), "reset [a/web]");
}
