//! The address and the credentials of the API server, from flags, a kubeconfig or the Pod.

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use secrecy::ExposeSecret as _;

use super::{RequestFailure, ServerLocation};

/// Reads address and credentials of the API server.
pub(super) async fn read(server: &ServerLocation) -> Result<Config, RequestFailure> {
    let mut config = match &server.kubeconfig {
        Some(path) => {
            let wrong = |error: kube::config::KubeconfigError| {
                let why = RequestFailure::chain(&error);
                RequestFailure::Configuration(format!("kubeconfig {}: {why}", path.display()))
            };
            let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
            // Without the proxy, connections could fail without an obvious cause.
            if names_proxy(&kubeconfig) {
                let why = format!("kubeconfig {}: proxy-url is not supported", path.display());
                return Err(RequestFailure::Configuration(why));
            }
            let options = KubeConfigOptions::default();
            let read = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            read.map_err(wrong)?
        }
        None if server.master.is_some() => Config::new(http::Uri::from_static("http://localhost")),
        None => Config::incluster_env().map_err(|error| {
            let why = RequestFailure::chain(&error);
            RequestFailure::Configuration(format!("no kubeconfig, and not in a cluster: {why}"))
        })?,
    };
    if let Some(master) = &server.master {
        config.cluster_url = parse_master(master)?;
    }
    let token = config.auth_info.token.as_ref();
    // kube panics at such a token.
    if token.is_some_and(|token| http::HeaderValue::from_str(token.expose_secret()).is_err()) {
        let why = "the kubeconfig's token has a character that no token has, such as a line break";
        return Err(RequestFailure::Configuration(why.into()));
    }
    let authority = config.cluster_url.authority();
    // The URL is a label of metrics.
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        let why = "the URL of the API server has a user name, which is not supported: name the user \
                   in a kubeconfig";
        return Err(RequestFailure::Configuration(why.into()));
    }
    Ok(config)
}

/// Returns whether the current context uses an HTTP or SOCKS proxy.
fn names_proxy(kubeconfig: &Kubeconfig) -> bool {
    let current = kubeconfig.current_context.as_deref();
    let mut contexts = kubeconfig.contexts.iter();
    let context = contexts.find(|context| Some(&*context.name) == current);
    let context = context.and_then(|context| context.context.as_ref());
    let mut clusters = kubeconfig.clusters.iter();
    context
        .and_then(|context| clusters.find(|cluster| cluster.name == context.cluster))
        .and_then(|cluster| cluster.cluster.as_ref()?.proxy_url.as_deref())
        .is_some_and(|url| !url.is_empty())
}

/// Parses `--master`: a URL, or `host:port` for plain HTTP.
fn parse_master(text: &str) -> Result<http::Uri, RequestFailure> {
    let with_scheme = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let wrong = || {
        // What precedes an @ may be a password.
        let shown = text.rsplit('@').next().unwrap_or_default();
        RequestFailure::Configuration(format!("{shown:?} is not the URL of an API server"))
    };
    let uri: http::Uri = with_scheme.parse().map_err(|_| wrong())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_is_a_url_or_host_and_port() {
        let master = |text| parse_master(text).map(|uri| uri.to_string());
        assert_eq!(master("127.0.0.1:8080").unwrap(), "http://127.0.0.1:8080/");
        assert_eq!(
            master("https://[::1]:6443/a").unwrap(),
            "https://[::1]:6443/a"
        );
        for wrong in ["", "ftp://x", "http://", "unix:///run/x", "a b"] {
            assert!(master(wrong).is_err(), "{wrong}");
        }
    }
}
