//! TLS: the configuration of a server from PEM files, and the hash of its certificate to which
//! SCRAM binds a channel.

use crate::options::TlsIdentity;
use basalt::{Error, Result};
use ring::digest;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// The name of the protocol for clients that begin with TLS at once.
const ALPN: &[u8] = b"postgresql";

/// What connections over TLS need.
pub struct Tls {
    /// The configuration of rustls.
    pub config: Arc<ServerConfig>,
    /// The hash of the certificate (RFC 5929, `tls-server-end-point`), if its signature algorithm
    /// defines one.
    pub certificate_hash: Option<Vec<u8>>,
}

impl Tls {
    /// Makes the configuration.
    ///
    /// Errors: PEM that cannot be parsed, a key of another certificate.
    pub fn new(identity: &TlsIdentity) -> Result<Tls> {
        let chain = CertificateDer::pem_slice_iter(&identity.certificate_pem)
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|e| {
                Error::invalid(format!("cannot parse the PEM file of the certificate: {e}"))
            })?;
        let first = chain.first().ok_or_else(|| {
            Error::invalid("the PEM file of the certificate has no certificate in it")
        })?;
        let certificate_hash = hash_of(first);
        let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(|e| {
            Error::invalid(format!("cannot parse the PEM file of the private key: {e}"))
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|e| Error::invalid(format!("cannot use the certificate and the key: {e}")))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            certificate_hash,
        })
    }
}

/// Splits off the first element of DER. Returns its tag, its contents and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..0x80 => (usize::from(*first), rest),
        _ => {
            let count = usize::from(first & 0x7f);
            if count > 4 {
                return None;
            }
            let (bytes, rest) = rest.split_at_checked(count)?;
            let len = bytes.iter().fold(0, |len, b| (len << 8) | usize::from(*b));
            (len, rest)
        }
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((*tag, contents, rest))
}

/// Returns the hash of a certificate by the hash function of its signature, or `None` if its
/// algorithm has none.
fn hash_of(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, contents, _) = element(certificate)?;
    let (_, _, rest) = element(contents)?;
    let (_, algorithm, _) = element(rest)?;
    let (_, oid, _) = element(algorithm)?;
    let hash = match oid {
        // RSA with MD5, SHA-1 or SHA-256, and ECDSA with SHA-1 or SHA-256.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4 | 5 | 11]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2] => &digest::SHA256,
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3] => &digest::SHA384,
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4] => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}
