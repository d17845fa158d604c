//! SCRAM-SHA-256 (RFC 5802, RFC 7677): the server's side, with and without channel binding.
//!
//! The server keeps a [`Verifier`] for each user. It is computed from the password when the server
//! starts. A user name without a password gets a verifier that no password matches, so that the
//! exchange does not reveal which names exist.

use crate::base64;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use std::num::NonZeroU32;

/// The mechanism without channel binding.
pub const SCRAM: &str = "SCRAM-SHA-256";
/// The mechanism with channel binding.
pub const SCRAM_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Iterations of the password hash, PostgreSQL's default.
const ITERATIONS: u32 = 4096;
/// Bytes of a salt, PostgreSQL's.
const SALT_BYTES: usize = 16;
/// Bytes of the server's part of a nonce.
const NONCE_BYTES: usize = 18;

/// Why an exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A message is malformed. The text says which.
    Malformed(&'static str),
    /// The password is wrong.
    Refused,
}

/// What the server keeps of a password.
#[derive(Clone)]
pub struct Verifier {
    salt: [u8; SALT_BYTES],
    stored_key: [u8; 32],
    server_key: [u8; 32],
}

fn hmac_of(key: &[u8], data: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data);
    let mut out = [0; 32];
    out.copy_from_slice(tag.as_ref());
    out
}

fn sha256(data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    out
}

/// Returns random bytes that an attacker cannot guess. They are secrets, so they do not come
/// from the environment's generator, whose numbers a seed repeats.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the operating system has random numbers");
    bytes
}

impl Verifier {
    /// Computes the verifier of a password. Costs some milliseconds.
    pub fn new(password: &str) -> Verifier {
        Verifier::with_salt(password, random())
    }

    fn with_salt(password: &str, salt: [u8; SALT_BYTES]) -> Verifier {
        let mut salted = [0; 32];
        let iterations = NonZeroU32::new(ITERATIONS).expect("it is not zero");
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            iterations,
            &salt,
            password.as_bytes(),
            &mut salted,
        );
        Verifier {
            salt,
            stored_key: sha256(&hmac_of(&salted, b"Client Key")),
            server_key: hmac_of(&salted, b"Server Key"),
        }
    }

    /// Returns a verifier for a name without a password. The same name gets the same salt.
    pub fn mock(secret: &[u8; 32], user: &str) -> Verifier {
        let hash = hmac_of(secret, user.as_bytes());
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&hash[..SALT_BYTES]);
        Verifier {
            salt,
            stored_key: random(),
            server_key: random(),
        }
    }
}

/// An exchange after the client's first message.
pub struct Exchange<'a> {
    verifier: &'a Verifier,
    /// The client's first message without its header, and the server's answer, with a comma each.
    signed: String,
    nonce: String,
    /// The data of the channel binding that the client must repeat, in base64.
    binding: String,
}

impl<'a> Exchange<'a> {
    /// Begins an exchange with the client's first message. `mechanism` is the one that the client
    /// chose, and `certificate_hash` the binding of the TLS connection, if the server offered it.
    /// Returns the exchange and the server's first message.
    pub fn begin(
        verifier: &'a Verifier,
        mechanism: &str,
        certificate_hash: Option<&[u8]>,
        message: &[u8],
    ) -> Result<(Exchange<'a>, String), Failure> {
        let malformed = Failure::Malformed("malformed SCRAM message");
        let message = std::str::from_utf8(message).map_err(|_| malformed)?;
        let (flag, rest) = message.split_once(',').ok_or(malformed)?;
        let (authorization, bare) = rest.split_once(',').ok_or(malformed)?;
        if !authorization.is_empty() {
            return Err(Failure::Malformed(
                "client uses authorization identity, but it is not supported",
            ));
        }
        let mut binding = format!("{flag},{authorization},").into_bytes();
        match (mechanism, flag, certificate_hash) {
            (SCRAM, "n", _) => {}
            (SCRAM, "y", None) => {}
            (SCRAM, "y", Some(_)) => {
                // The client supports the binding, and was made to think that the server does not.
                return Err(Failure::Malformed(
                    "SCRAM channel binding negotiation error",
                ));
            }
            (SCRAM_PLUS, "p=tls-server-end-point", Some(hash)) => binding.extend_from_slice(hash),
            _ => return Err(Failure::Malformed("invalid SCRAM channel binding")),
        }
        let nonce = bare
            .split(',')
            .find_map(|field| field.strip_prefix("r="))
            .filter(|nonce| !nonce.is_empty())
            .ok_or(malformed)?;
        if bare.starts_with("m=") {
            return Err(Failure::Malformed(
                "client requires an unsupported SCRAM extension",
            ));
        }
        let nonce = format!("{nonce}{}", base64::encode(&random::<NONCE_BYTES>()));
        let salt = base64::encode(&verifier.salt);
        let answer = format!("r={nonce},s={salt},i={ITERATIONS}");
        let exchange = Exchange {
            verifier,
            signed: format!("{bare},{answer},"),
            nonce,
            binding: base64::encode(&binding),
        };
        Ok((exchange, answer))
    }

    /// Checks the client's last message. Returns the server's last message.
    pub fn finish(self, message: &[u8]) -> Result<String, Failure> {
        let malformed = Failure::Malformed("malformed SCRAM message");
        let message = std::str::from_utf8(message).map_err(|_| malformed)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(malformed)?;
        let mut fields = without_proof.split(',');
        let binding = fields.next().and_then(|f| f.strip_prefix("c="));
        let nonce = fields.next().and_then(|f| f.strip_prefix("r="));
        if binding != Some(&self.binding) {
            return Err(Failure::Malformed("SCRAM channel binding check failed"));
        }
        if nonce != Some(&self.nonce) {
            return Err(Failure::Malformed("SCRAM nonce does not match"));
        }
        let proof = base64::decode(proof).ok_or(malformed)?;
        let proof: [u8; 32] = proof.try_into().map_err(|_| malformed)?;
        let signed = self.signed + without_proof;
        let signature = hmac_of(&self.verifier.stored_key, signed.as_bytes());
        let mut client_key = proof;
        for (byte, mask) in client_key.iter_mut().zip(signature) {
            *byte ^= mask;
        }
        let found = sha256(&client_key);
        // All bytes are compared, so that the time does not depend on how many are equal.
        let differing = found
            .iter()
            .zip(&self.verifier.stored_key)
            .fold(0, |differing, (a, b)| differing | (a ^ b));
        if differing != 0 {
            return Err(Failure::Refused);
        }
        let answer = hmac_of(&self.verifier.server_key, signed.as_bytes());
        Ok(format!("v={}", base64::encode(&answer)))
    }
}

#[cfg(test)]
mod tests;
