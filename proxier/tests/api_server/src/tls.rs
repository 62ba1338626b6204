//! HTTPS with certificates that are part of this crate.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The authority that signed the other certificates, as PEM.
pub const AUTHORITY: &str = include_str!("../certificates/authority.pem");
/// A client's certificate, as PEM.
pub const CLIENT_CERTIFICATE: &str = include_str!("../certificates/client.pem");
/// The client's key, as PEM.
pub const CLIENT_KEY: &str = include_str!("../certificates/client.key");
/// The certificate of a server at 127.0.0.1, as PEM.
pub const SERVER_CERTIFICATE: &str = include_str!("../certificates/server.pem");
/// The server's key, as PEM.
pub const SERVER_KEY: &str = include_str!("../certificates/server.key");

/// Returns an acceptor for clients without a certificate or with a valid one.
pub(crate) fn acceptor() -> TlsAcceptor {
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a PEM");
    let key = PrivateKeyDer::from_pem_slice(SERVER_KEY.as_bytes()).expect("a PEM");
    let mut authorities = RootCertStore::empty();
    authorities
        .add(certificate(AUTHORITY))
        .expect("an authority");
    let provider = Arc::new(ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider.clone())
            .allow_unauthenticated()
            .build()
            .expect("an authority");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows them")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate(SERVER_CERTIFICATE)], key)
        .expect("a matching key");
    TlsAcceptor::from(Arc::new(config))
}
