//! Verification of the server's certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Accepts a certificate that a bundle's authority signed, or that the bundle contains.
///
/// webpki accepts only signed ones. Go accepts both, and so some clusters name the server's own certificate as
/// `certificate-authority`.
#[derive(Debug)]
pub(super) struct BundleVerifier {
    /// Verifies signed certificates.
    chains: Arc<WebPkiServerVerifier>,
    bundle: Vec<CertificateDer<'static>>,
}

impl BundleVerifier {
    /// Returns a verifier for `bundle`, whose authorities `chains` knows.
    pub(super) fn new(
        chains: Arc<WebPkiServerVerifier>,
        bundle: Vec<CertificateDer<'static>>,
    ) -> Self {
        Self { chains, bundle }
    }
}

impl ServerCertVerifier for BundleVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let result = (self.chains).verify_server_cert(certificate, intermediates, name, ocsp, now);
        match result {
            Err(error) if is_about_issuer(&error) && self.bundle.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.chains).verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.chains).verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Returns whether a certificate was refused because of its issuer alone.
///
/// webpki checks the validity in time first, whoever issued the certificate.
fn is_about_issuer(error: &Error) -> bool {
    let Error::InvalidCertificate(error) = error else {
        return false;
    };
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => true,
        // A self-signed certificate of an authority, as `openssl req -x509` makes them.
        CertificateError::Other(other) => {
            other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
        }
        _ => false,
    }
}

/// Accepts every certificate (`insecure-skip-tls-verify`).
#[derive(Debug)]
pub(super) struct NoVerifier(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api_server::tls::{self, Identity};
    use rustls::pki_types::pem::PemObject as _;

    use super::super::pem::Pem;
    use super::super::tls::bundle_verifier;
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    /// Verifies a server that is the only certificate of the bundle, this many years after 1970.
    fn verify(server: Identity, host: &str, years: u32) -> Result<ServerCertVerified, Error> {
        let pem = Pem {
            text: server.certificate.into(),
            origin: "a test".into(),
        };
        let (verifier, _) = bundle_verifier(&pem).unwrap();
        let certificate = CertificateDer::from_pem_slice(&pem.text).unwrap();
        let name = ServerName::try_from(host).unwrap();
        let now = UnixTime::since_unix_epoch(YEAR * years);
        verifier.verify_server_cert(&certificate, &[], &name, &[], now)
    }

    #[test]
    fn a_certificate_of_the_bundle_is_accepted_for_its_name_time_and_purpose() {
        for server in [tls::SERVER, tls::SERVER_P521, tls::SERVER_SELF_SIGNED] {
            verify(server, "127.0.0.1", 100).unwrap();
            for (host, years, why) in [
                ("127.0.0.2", 100, "not valid for"),
                ("127.0.0.1", 30, "not valid yet"),
                ("127.0.0.1", 200, "expired"),
            ] {
                let error = verify(server, host, years).unwrap_err();
                assert!(error.to_string().contains(why), "{error}");
            }
        }
        let error = verify(tls::CLIENT, "127.0.0.1", 100).unwrap_err();
        assert!(error.to_string().contains("extended key usage"), "{error}");
    }

    #[test]
    fn an_unreadable_certificate_of_a_bundle_is_named() {
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let text = [tls::AUTHORITY, damaged, tls::AUTHORITY, damaged].concat();
        let pem = |text: &str| Pem {
            text: text.into(),
            origin: "certificate-authority a.pem".into(),
        };
        let (_, warning) = bundle_verifier(&pem(&text)).unwrap();
        let expected =
            "certificate-authority a.pem: certificate 2 is unreadable and not used (2 in all)";
        assert_eq!(warning.as_deref(), Some(expected));
        let (_, warning) = bundle_verifier(&pem(tls::AUTHORITY)).unwrap();
        assert_eq!(warning, None);
    }
}
