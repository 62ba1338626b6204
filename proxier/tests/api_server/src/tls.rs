//! HTTPS with certificates that are part of this crate.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

/// A certificate and its key, as PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: &'static str,
    /// Its key.
    pub key: &'static str,
}

/// Returns the identity with these file names.
macro_rules! identity {
    ($certificate:literal, $key:literal) => {
        Identity {
            certificate: include_str!(concat!("../certificates/", $certificate)),
            key: include_str!(concat!("../certificates/", $key)),
        }
    };
}

/// The authority that signed the other certificates, as PEM.
pub const AUTHORITY: &str = include_str!("../certificates/authority.pem");
/// A client.
pub const CLIENT: Identity = identity!("client.pem", "client.key");
/// A client with a key on the curve P-521.
pub const CLIENT_P521: Identity = identity!("client-p521.pem", "client-p521.key");
/// A client whose certificate has version 1 of X.509.
pub const CLIENT_V1: Identity = identity!("client-v1.pem", "client.key");
/// A server at 127.0.0.1.
pub const SERVER: Identity = identity!("server.pem", "server.key");
/// A server at 127.0.0.1 with a key on the curve P-521.
pub const SERVER_P521: Identity = identity!("server-p521.pem", "server-p521.key");
/// A server at 127.0.0.1 that is its own authority.
pub const SERVER_SELF_SIGNED: Identity =
    identity!("server-self-signed.pem", "server-self-signed.key");

/// A client's certificate, as PEM.
pub const CLIENT_CERTIFICATE: &str = CLIENT.certificate;
/// The client's key, as PEM.
pub const CLIENT_KEY: &str = CLIENT.key;
/// The certificate of a server at 127.0.0.1, as PEM.
pub const SERVER_CERTIFICATE: &str = SERVER.certificate;
/// The server's key, as PEM.
pub const SERVER_KEY: &str = SERVER.key;

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a PEM")
}

/// Returns an acceptor for clients without a certificate or with a valid one, which offers these protocols.
pub(crate) fn acceptor(server: Identity, protocols: &[&str]) -> TlsAcceptor {
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).expect("a PEM");
    let mut authorities = RootCertStore::empty();
    authorities
        .add(certificate(AUTHORITY))
        .expect("an authority");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider.clone())
            .allow_unauthenticated()
            .build()
            .expect("an authority");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows them")
        .with_client_cert_verifier(Arc::new(ClientVerifier(clients)))
        .with_single_cert(vec![certificate(server.certificate)], key)
        .expect("a matching key");
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().into())
        .collect();
    TlsAcceptor::from(Arc::new(config))
}

/// Accepts also [`CLIENT_V1`], as Go's servers do. rustls parses only version 3.
#[derive(Debug)]
struct ClientVerifier(Arc<dyn ClientCertVerifier>);

fn is_v1(client: &CertificateDer<'_>) -> bool {
    *client == certificate(CLIENT_V1.certificate)
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        client: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match is_v1(client) {
            true => Ok(ClientCertVerified::assertion()),
            false => self.0.verify_client_cert(client, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        client: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match is_v1(client) {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => self.0.verify_tls12_signature(message, client, signed),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        client: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match is_v1(client) {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => self.0.verify_tls13_signature(message, client, signed),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
