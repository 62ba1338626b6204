//! What identifies us to the API server in the header of a request.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use kube::config::{AuthInfo, AuthProviderConfig, ExecAuthCluster};
use secrecy::ExposeSecret as _;

use super::plugin::Plugin;

/// The source of the header `Authorization`.
#[derive(Clone, Debug)]
pub(super) enum Credential {
    /// No header: a client certificate, or nothing.
    None,
    /// A value that does not change.
    Header(HeaderValue),
    /// A file with a token, which is read for each request.
    TokenFile(PathBuf),
    /// A program that prints a token or a certificate.
    Plugin(Box<Plugin>),
}

impl Credential {
    /// Returns the credential of a kubeconfig's user. If there are several, client-go's precedence decides.
    ///
    /// Relative names are relative to `folder`, which has the kubeconfig.
    pub(super) fn of_user(
        user: &AuthInfo,
        folder: &Path,
        cluster: impl FnOnce() -> Result<ExecAuthCluster, String>,
    ) -> Result<Self, String> {
        if let Some(provider) = &user.auth_provider {
            return of_provider(provider).map_err(|why| format!("auth-provider: {why}"));
        }
        if let Some(name) = present(user.username.as_deref()) {
            let password = user
                .password
                .as_ref()
                .map_or("", |word| word.expose_secret());
            let pair = BASE64_STANDARD.encode(format!("{name}:{password}"));
            let value = header("Basic", &pair).map_err(|why| format!("username: {why}"))?;
            return Ok(Self::Header(value));
        }
        let token = user.token.as_ref().map(|token| token.expose_secret());
        if let Some(token) = present(token) {
            return Ok(Self::Header(
                bearer(token).map_err(|why| format!("token: {why}"))?,
            ));
        }
        if let Some(file) = present(user.token_file.as_deref()) {
            return Ok(Self::TokenFile(folder.join(file)));
        }
        let Some(exec) = &user.exec else {
            return Ok(Self::None);
        };
        let cluster = exec.provide_cluster_info.then(cluster).transpose()?;
        let plugin = Plugin::new(exec, folder, cluster).map_err(|why| format!("exec: {why}"))?;
        Ok(Self::Plugin(Box::new(plugin)))
    }

    /// Returns the value of the header, if there is one. Reads a token file.
    pub(super) fn header(&self) -> Result<Option<HeaderValue>, String> {
        match self {
            Self::Header(value) => Ok(Some(value.clone())),
            Self::TokenFile(file) => {
                let value = of_file(file).map_err(|why| format!("{}: {why}", file.display()))?;
                Ok(Some(value))
            }
            Self::Plugin(_) | Self::None => Ok(None),
        }
    }

    /// Returns whether a kubeconfig's user has a secret, a certificate or a plugin.
    pub(super) fn is_in(user: &AuthInfo) -> bool {
        let texts = [
            user.username.as_deref(),
            user.password.as_ref().map(|word| word.expose_secret()),
            user.token.as_ref().map(|token| token.expose_secret()),
            user.token_file.as_deref(),
            user.client_certificate.as_deref(),
            user.client_certificate_data.as_deref(),
        ];
        let mut texts = texts.into_iter();
        texts.any(|text| present(text).is_some())
            || user.exec.is_some()
            || user.auth_provider.is_some()
    }
}

/// Treats an empty text as absent, as client-go does.
pub(super) fn present(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Returns the header value with this token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, &'static str> {
    header("Bearer", token)
}

fn of_file(file: &Path) -> Result<HeaderValue, String> {
    let token = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    match token.trim() {
        "" => Err("the file has no token".into()),
        token => bearer(token).map_err(str::to_owned),
    }
}

fn header(scheme: &str, secret: &str) -> Result<HeaderValue, &'static str> {
    let value = HeaderValue::try_from(format!("{scheme} {secret}"));
    let mut value =
        value.map_err(|_| "the value has a character that no token has, such as a line break")?;
    // Keeps the value out of debug output of a request.
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the token of a legacy provider. Like client-go, only the provider `oidc` is supported; a token that has
/// expired is not renewed.
fn of_provider(provider: &AuthProviderConfig) -> Result<Credential, String> {
    if provider.name != "oidc" {
        return Err(format!(
            "the provider {:?} is not supported, as in Kubernetes since 1.26; use a credential plugin (exec)",
            provider.name
        ));
    }
    let token = provider.config.get("id-token").map(String::as_str);
    let token = present(token).ok_or("config.id-token: the value is missing")?;
    let value = bearer(token).map_err(|why| format!("config.id-token: {why}"))?;
    Ok(Credential::Header(value))
}
