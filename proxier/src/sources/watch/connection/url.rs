//! The URL of an API server.

use http::Uri;

/// Parses a URL, or `host:port` for plain HTTP, as client-go does.
///
/// The result has the scheme `http` or `https`, a host, and a port from 1 to 65535 or none. The reason of an error has
/// no password.
pub(super) fn parse(text: &str) -> Result<Uri, String> {
    // What precedes an @ may be a password.
    let shown = text.rsplit('@').next().unwrap_or_default();
    let wrong = |why: &str| format!("{shown:?} is not the URL of an API server{why}");
    let has_scheme = text.contains("://");
    let with_scheme = if has_scheme {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let uri: Uri = with_scheme.parse().map_err(|_| wrong(""))?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong(""));
    };
    // The URL is a label of metrics.
    if authority.as_str().contains('@') {
        return Err(format!(
            "{} has a user name, which is not supported: name the user in a kubeconfig",
            wrong("")
        ));
    }
    let (host, port) = (authority.host(), authority.port_u16());
    if host.is_empty() || !has_scheme && uri.path() != "/" {
        return Err(wrong(""));
    }
    // Without this, a port that is no number would mean the scheme's port.
    if authority.as_str() != host && port.unwrap_or(0) == 0 {
        return Err(wrong(": its port is not a number from 1 to 65535"));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_or_host_and_port() {
        let parsed = |text| parse(text).map(|uri| uri.to_string());
        for (text, url) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("localhost", "http://localhost/"),
            ("localhost:6443/", "http://localhost:6443/"),
            ("[::1]:80", "http://[::1]:80/"),
            ("https://[::1]:6443/a", "https://[::1]:6443/a"),
            ("https://[::1]", "https://[::1]/"),
            ("https://host:65535", "https://host:65535/"),
        ] {
            assert_eq!(parsed(text).unwrap(), url);
        }
        for wrong in [
            "",
            "ftp://x",
            "http://",
            "unix:///run/x",
            "a b",
            "a/b",
            ":80",
        ] {
            let why = parsed(wrong).unwrap_err();
            assert!(why.ends_with("is not the URL of an API server"), "{why}");
        }
        for wrong in ["a:0", "a:65536", "http://a:", "https://[::1]:99999"] {
            let why = parsed(wrong).unwrap_err();
            assert!(why.contains("port"), "{why}");
        }
        let why = parsed("https://admin:secret@host").unwrap_err();
        assert!(
            why.contains("user name") && !why.contains("secret"),
            "{why}"
        );
    }
}
