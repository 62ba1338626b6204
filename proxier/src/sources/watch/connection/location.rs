//! The address and the credentials of the API server, from flags, a kubeconfig or the Pod.
//!
//! What kube-client would do with a kubeconfig is done here, because it panics at some values and sends credentials
//! without TLS. Its types remain.

use std::path::Path;
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use kube::Config;
use kube::client::ConfigExt as _;
use kube::config::{AuthInfo, Cluster, ExecAuthCluster, Kubeconfig};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use secrecy::ExposeSecret as _;

use super::credential::{Credential, present};
use super::pem::Pem;
use super::tls::{self, TlsSettings};
use super::{RequestFailure, ServerLocation, url};

/// The files of a Pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How to talk to the API server.
#[derive(Debug)]
pub(super) struct Access {
    /// The URL of the server, which has the scheme `http` or `https` and a host, and whom the user acts as.
    pub(super) config: Config,
    /// `None` without TLS.
    pub(super) tls: Option<TlsSettings>,
    /// Without TLS, [`Credential::None`].
    pub(super) credential: Credential,
    /// What is not used, and why.
    pub(super) warnings: Vec<String>,
    /// The number of servers of the configuration, of which this is one.
    pub(super) servers: usize,
}

/// The extension of a kubeconfig's cluster with more addresses of API servers, which `kubectl` ignores.
const MORE_SERVERS: &str = "ipvs-proxier.io/servers";

/// Reads address and credentials of the API server: of several, of the one whose turn it is. Runs no credential plugin.
pub(super) fn read(server: &ServerLocation, turn: usize) -> Result<Access, RequestFailure> {
    let wrong = RequestFailure::Configuration;
    let masters = server.master.iter().flat_map(|list| list.split(','));
    let parse = |text| url::parse(text).map_err(|why| wrong(format!("--master: {why}")));
    let masters = masters.map(parse).collect::<Result<Vec<_>, _>>()?;
    match (&server.kubeconfig, &masters[..]) {
        (Some(file), _) => {
            let named = |text| format!("kubeconfig {}: {text}", file.display());
            let access = of_kubeconfig(file, masters, turn);
            let mut access = access.map_err(|why| wrong(named(why)))?;
            access.warnings = access.warnings.into_iter().map(named).collect();
            Ok(access)
        }
        (None, [_, ..]) => of_master(masters, turn).map_err(wrong),
        (None, []) => of_pod().map_err(|why| {
            wrong(format!(
                "no --kubeconfig and no --master, and not in a cluster: {why}"
            ))
        }),
    }
}

/// Returns plain access without a credential, or access with TLS and the authorities of this machine.
fn of_master(urls: Vec<Uri>, turn: usize) -> Result<Access, String> {
    let user = AuthInfo::default();
    let urls = (urls, turn, "--master");
    of_cluster(&Cluster::default(), &user, urls, Path::new(""))
}

fn of_pod() -> Result<Access, String> {
    let variable = |name| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let url = url::parse(&format!("https://{host}:{port}"))?;
    let folder = Path::new(SERVICE_ACCOUNT);
    let cluster = Cluster {
        certificate_authority: Some("ca.crt".into()),
        ..Cluster::default()
    };
    let user = AuthInfo {
        token_file: Some("token".into()),
        ..AuthInfo::default()
    };
    of_cluster(
        &cluster,
        &user,
        (vec![url], 0, "KUBERNETES_SERVICE_HOST"),
        folder,
    )
}

/// Reads the current context of a kubeconfig; `masters` override its servers.
fn of_kubeconfig(file: &Path, masters: Vec<Uri>, turn: usize) -> Result<Access, String> {
    let kubeconfig = Kubeconfig::from_yaml(&read_text(file)?);
    let kubeconfig = kubeconfig.map_err(|error| RequestFailure::chain(&error))?;
    let name = present(kubeconfig.current_context.as_deref());
    let name = name.ok_or("current-context: the value is missing")?;
    let mut contexts = kubeconfig.contexts.into_iter();
    let context = contexts.find(|context| context.name == name);
    let context = context.and_then(|context| context.context);
    let context =
        context.ok_or_else(|| format!("current-context: there is no context {name:?}"))?;
    let mut clusters = kubeconfig.clusters.into_iter();
    let cluster = clusters.find(|cluster| cluster.name == context.cluster);
    let cluster = cluster.and_then(|cluster| cluster.cluster);
    let missing = || {
        format!(
            "context {name:?}: there is no cluster {:?}",
            context.cluster
        )
    };
    let cluster = cluster.ok_or_else(missing)?;
    // client-go, too, accepts a user that is missing.
    let mut users = kubeconfig.auth_infos.into_iter();
    let user = users.find(|user| Some(&user.name) == context.user.as_ref());
    let user = user.and_then(|user| user.auth_info).unwrap_or_default();
    // Without the proxy, connections could fail without an obvious cause.
    if present(cluster.proxy_url.as_deref()).is_some() {
        return Err("proxy-url is not supported".into());
    }
    let urls = match masters[..] {
        [_, ..] => (masters, turn, "--master"),
        [] => (servers(&cluster)?, turn, "server"),
    };
    of_cluster(&cluster, &user, urls, file.parent().unwrap_or(file))
}

/// Returns the server of a cluster, and those that its extension adds.
fn servers(cluster: &Cluster) -> Result<Vec<Uri>, String> {
    let server = present(cluster.server.as_deref()).ok_or("server: the value is missing")?;
    let mut urls = vec![url::parse(server).map_err(|why| format!("server: {why}"))?];
    let wrong = |why: &str| format!("extension {MORE_SERVERS}: {why}");
    if let Some(more) = extension(cluster, MORE_SERVERS) {
        let list = more
            .as_array()
            .ok_or_else(|| wrong("the value is no list of URLs"))?;
        for server in list {
            let server = server
                .as_str()
                .ok_or_else(|| wrong("an element is no string"))?;
            urls.push(url::parse(server).map_err(|why| wrong(&why))?);
        }
    }
    Ok(urls)
}

/// Reads a file in UTF-8 or, with a byte order mark, in UTF-16.
fn read_text(file: &Path) -> Result<String, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let utf16 = |bytes: &[u8], decode: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks();
        let text = String::from_utf16(&pairs.iter().copied().map(decode).collect::<Vec<_>>());
        text.ok().filter(|_| rest.is_empty())
    };
    let text = match &bytes[..] {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8(rest.to_vec()).ok(),
        _ => String::from_utf8(bytes).ok(),
    };
    text.ok_or_else(|| "the file is no text in UTF-8 or UTF-16".into())
}

/// Returns how to talk to the URL whose turn it is, with the other settings of `cluster` and `user`. A setting names the
/// URLs, of which there is at least one.
fn of_cluster(
    cluster: &Cluster,
    user: &AuthInfo,
    (mut urls, turn, setting): (Vec<Uri>, usize, &str),
    folder: &Path,
) -> Result<Access, String> {
    let servers = urls.len();
    let have_tls = |url: &Uri| url.scheme() == Some(&Scheme::HTTPS);
    if urls.iter().any(have_tls) && !urls.iter().all(have_tls) {
        // Who keeps a node from the servers with TLS could be its API server otherwise.
        return Err(format!(
            "{setting}: some addresses have https and others not; all must have it, or none"
        ));
    }
    let url = urls.swap_remove(turn % servers);
    let is_insecure = cluster.insecure_skip_tls_verify == Some(true);
    for (field, value) in [
        ("certificate-authority", &cluster.certificate_authority),
        (
            "certificate-authority-data",
            &cluster.certificate_authority_data,
        ),
    ] {
        if is_insecure && present(value.as_deref()).is_some() {
            return Err(format!(
                "{field} and insecure-skip-tls-verify contradict each other; remove one of them"
            ));
        }
    }
    let mut warnings = Vec::new();
    let (mut tls, mut credential) = (None, Credential::None);
    if have_tls(&url) {
        let authority = authority(cluster, folder)?;
        credential = Credential::of_user(user, folder, || {
            Ok(ExecAuthCluster {
                server: Some(url.to_string().trim_end_matches('/').into()),
                insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
                certificate_authority_data: authority.as_ref().map(|pem| pem.text.clone()),
                proxy_url: None,
                tls_server_name: cluster.tls_server_name.clone(),
                config: exec_extension(cluster),
            })
        })?;
        let verifier = match &authority {
            Some(pem) => {
                let (verifier, warning) = tls::bundle_verifier(pem)?;
                warnings.extend(warning);
                verifier
            }
            None if is_insecure => tls::no_verifier(),
            None => tls::system_verifier()?,
        };
        tls = Some(TlsSettings {
            verifier,
            server_name: server_name(cluster)?,
            identity: identity(user, folder)?,
        });
    } else if Credential::is_in(user) {
        warnings.push(format!(
            "{setting}: {url} is not an https URL, so the credentials of the user are not sent"
        ));
    }
    let mut config = Config::new(url);
    config.auth_info = AuthInfo {
        impersonate: user.impersonate.clone(),
        impersonate_uid: user.impersonate_uid.clone(),
        impersonate_groups: user.impersonate_groups.clone(),
        impersonate_user_extra: user.impersonate_user_extra.clone(),
        ..AuthInfo::default()
    };
    if config.extra_headers_layer().is_err() {
        let why = "as, as-uid, as-groups or as-user-extra: the value cannot be in a header";
        return Err(why.into());
    }
    Ok(Access {
        config,
        tls,
        credential,
        warnings,
        servers,
    })
}

fn authority(cluster: &Cluster, folder: &Path) -> Result<Option<Pem>, String> {
    let data = cluster.certificate_authority_data.as_deref();
    let file = cluster.certificate_authority.as_deref();
    Pem::read("certificate-authority", data, file, folder)
}

/// Returns what the cluster has for the user's credential plugin.
fn exec_extension(cluster: &Cluster) -> Option<serde_json::Value> {
    extension(cluster, "client.authentication.k8s.io/exec").cloned()
}

/// Returns the extension of this name.
fn extension<'a>(cluster: &'a Cluster, name: &str) -> Option<&'a serde_json::Value> {
    let mut extensions = cluster.extensions.iter().flatten();
    let found = extensions.find(|found| found.name == name);
    found.map(|found| &found.extension)
}

fn server_name(cluster: &Cluster) -> Result<Option<ServerName<'static>>, String> {
    let name = present(cluster.tls_server_name.as_deref());
    let parse = |name: &str| {
        ServerName::try_from(name.to_owned()).map_err(|_| {
            format!("tls-server-name: {name:?} is neither a DNS name nor an IP address")
        })
    };
    name.map(parse).transpose()
}

/// Returns the client certificate of a user and its key.
fn identity(user: &AuthInfo, folder: &Path) -> Result<Option<Arc<CertifiedKey>>, String> {
    let data = user.client_certificate_data.as_deref();
    let file = user.client_certificate.as_deref();
    let certificate = Pem::read("client-certificate", data, file, folder)?;
    let data = user.client_key_data.as_ref().map(|key| key.expose_secret());
    let key = Pem::read("client-key", data, user.client_key.as_deref(), folder)?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => tls::identity(&certificate, &key).map(Some),
        (Some(_), None) => Err("client-key: the value is missing".into()),
        (None, Some(_)) => Err("client-certificate: the value is missing".into()),
        (None, None) => Ok(None),
    }
}
