//! TLS to the API server: whom to trust, our own certificate, and the choice between HTTP/2 and HTTP/1.1.

use std::sync::Arc;

use hyper_rustls::{
    DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error, InconsistentKeys, RootCertStore};

use super::pem::Pem;
use super::verifier::{BundleVerifier, NoVerifier};

/// The settings of connections to one server.
#[derive(Clone, Debug)]
pub(super) struct TlsSettings {
    /// Verifies the server's certificate.
    pub(super) verifier: Arc<dyn ServerCertVerifier>,
    /// The name in the server's certificate, if it is not the URL's host (`tls-server-name`).
    pub(super) server_name: Option<ServerName<'static>>,
    /// Our certificate and its key.
    pub(super) identity: Option<Arc<CertifiedKey>>,
}

/// Adds TLS to a connector. Without settings, connections to https URLs fail.
///
/// It offers HTTP/2, which API servers choose. Its pings detect a connection that a proxy keeps open without passing anything
/// on, and all requests share a connection. Without TLS, and with a proxy that speaks HTTP/1.1 only, each request has a
/// connection of its own.
pub(super) fn connector<C>(
    http: C,
    settings: Option<TlsSettings>,
) -> Result<HttpsConnector<C>, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut names: Arc<dyn ResolveServerName + Send + Sync> =
        Arc::new(DefaultServerNameResolver::default());
    let mut config = match settings {
        Some(settings) => {
            if let Some(name) = settings.server_name {
                names = Arc::new(FixedServerNameResolver::new(name));
            }
            let builder = (builder.dangerous()).with_custom_certificate_verifier(settings.verifier);
            match settings.identity {
                Some(key) => {
                    builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
                }
                None => builder.with_no_client_auth(),
            }
        }
        None => builder
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".into(), b"http/1.1".into()];
    Ok(HttpsConnector::new(http, config, false, names))
}

/// Returns the only provider of cryptography that is compiled in.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Returns a verifier that accepts every certificate.
pub(super) fn no_verifier() -> Arc<dyn ServerCertVerifier> {
    Arc::new(NoVerifier(provider()))
}

/// Returns a verifier for the authorities of this machine, as if no authority is configured.
pub(super) fn system_verifier() -> Result<Arc<dyn ServerCertVerifier>, String> {
    let mut bundle = Bundle::new();
    for certificate in rustls_native_certs::load_native_certs().certs {
        bundle.add(certificate);
    }
    let missing =
        "no certificate-authority is configured, and this machine has no list of authorities";
    bundle.verifier().ok_or_else(|| missing.to_owned())
}

/// Returns a verifier for the authorities of `pem`, and a warning if some are unreadable. Go skips those too.
pub(super) fn bundle_verifier(
    pem: &Pem,
) -> Result<(Arc<dyn ServerCertVerifier>, Option<String>), String> {
    let mut bundle = Bundle::new();
    let mut unreadable = Vec::new();
    for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(&pem.text)) {
        if !certificate.is_ok_and(|certificate| bundle.add(certificate)) {
            unreadable.push(number);
        }
    }
    let origin = &pem.origin;
    let Some(verifier) = bundle.verifier() else {
        let readable = if unreadable.is_empty() {
            ""
        } else {
            "readable "
        };
        return Err(format!("{origin}: the text has no {readable}certificate"));
    };
    let warning = unreadable.first().map(|first| {
        let count = unreadable.len();
        format!("{origin}: certificate {first} is unreadable and not used ({count} in all)")
    });
    Ok((verifier, warning))
}

/// Certificates that a server may have, or that may have signed its certificate.
struct Bundle {
    authorities: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Bundle {
    fn new() -> Self {
        Self {
            authorities: RootCertStore::empty(),
            certificates: Vec::new(),
        }
    }

    /// Returns whether the certificate is readable.
    fn add(&mut self, certificate: CertificateDer<'static>) -> bool {
        let is_readable = self.authorities.add(certificate.clone()).is_ok();
        if is_readable {
            self.certificates.push(certificate);
        }
        is_readable
    }

    /// Returns `None` without certificates.
    fn verifier(self) -> Option<Arc<dyn ServerCertVerifier>> {
        let authorities = Arc::new(self.authorities);
        let chains = WebPkiServerVerifier::builder_with_provider(authorities, provider());
        let verifier = BundleVerifier::new(chains.build().ok()?, self.certificates);
        Some(Arc::new(verifier))
    }
}

/// Returns our certificate and its key.
///
/// The certificate is not parsed: the server judges it, and webpki knows only version 3.
pub(super) fn identity(certificate: &Pem, key: &Pem) -> Result<Arc<CertifiedKey>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate.text).collect();
    let chain = chain.unwrap_or_default();
    if chain.is_empty() {
        return Err(format!(
            "{}: the text has no certificate",
            certificate.origin
        ));
    }
    let unusable = |why: &str| {
        format!(
            "{}: the text has no usable private key{why}; RSA of 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, and \
             Ed25519 can be used, without encryption",
            key.origin
        )
    };
    let der = PrivateKeyDer::from_pem_slice(&key.text).map_err(|_| unusable(""))?;
    // The error has no part of the key.
    let signer = (provider().key_provider)
        .load_private_key(der)
        .map_err(|error| unusable(&format!(" ({error})")))?;
    let identity = CertifiedKey::new(chain, signer);
    // Other errors mean that the two cannot be compared.
    if identity.keys_match() == Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) {
        let (key, certificate) = (&key.origin, &certificate.origin);
        return Err(format!(
            "{key}: the private key does not belong to {certificate}"
        ));
    }
    Ok(Arc::new(identity))
}
