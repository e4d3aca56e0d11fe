//! The shared secret of the processes of a world.
//!
//! Law: the secret never travels. Each end proves that it holds it by a keyed hash (HMAC-SHA256) over both
//! ends' fresh random bytes.
//!
//! What it protects from: a process of another job, a port scanner or any stranger who reaches the port can
//! neither join a world, nor be taken for rank 0, nor alter what the processes say. What it does not protect
//! from: whoever reads the network reads along, and whoever can reach the port and break connections can end
//! the world.

use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::RendezvousError;
use warpweft_base::errors::shown_path;
use warpweft_base::whole_file::regular;

pub(super) const SECRET: &str = "WARPWEFT_SECRET";
pub(super) const SECRET_FILE: &str = "WARPWEFT_SECRET_FILE";

/// The fewest bytes a secret has: who listens to a handshake could try shorter ones until one fits.
const FEWEST: usize = 16;

/// Bytes of a proof.
pub(super) const PROOF: usize = 32;

/// A shared secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// These bytes, 16 or more.
    ///
    /// # Errors
    /// [`RendezvousError::Secret`] for fewer.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, RendezvousError> {
        let bytes = bytes.into();
        if bytes.len() < FEWEST {
            let reason =
                format!("the secret has {} bytes, and fewer than {FEWEST} can be guessed", bytes.len());
            return Err(RendezvousError::Secret { reason });
        }
        Ok(Self(bytes))
    }

    /// WARPWEFT_SECRET, or what the file named by WARPWEFT_SECRET_FILE holds, without white space around it.
    /// `None` if neither is set.
    ///
    /// # Errors
    /// [`RendezvousError::Secret`] for a file that cannot be read, a secret too short, or both variables set.
    pub fn of_environment() -> Result<Option<Self>, RendezvousError> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let text = match (set(SECRET), set(SECRET_FILE)) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let reason = "WARPWEFT_SECRET and WARPWEFT_SECRET_FILE are both set".to_owned();
                return Err(RendezvousError::Secret { reason });
            }
            (Some(text), None) => text.into_encoded_bytes(),
            (None, Some(path)) => regular::short(Path::new(&path)).map_err(|error| {
                let reason = format!("WARPWEFT_SECRET_FILE {}: {error}", shown_path(Path::new(&path)));
                RendezvousError::Secret { reason }
            })?,
        };
        Self::new(text.trim_ascii()).map(Some)
    }

    /// A key made from a secret.
    pub(super) fn derived(key: [u8; PROOF]) -> Self {
        Self(key.to_vec())
    }

    /// The keyed hash of `parts` for one purpose.
    pub(super) fn proof(&self, purpose: &str, parts: &[&[u8]]) -> [u8; PROOF] {
        finished(keyed(&self.0, purpose, parts))
    }

    /// Is `proof` that of somebody who holds this secret? Takes the same time whatever the answer.
    pub(super) fn admits(&self, proof: &[u8; PROOF], purpose: &str, parts: &[&[u8]]) -> bool {
        keyed(&self.0, purpose, parts).is_some_and(|hash| hash.verify_slice(proof).is_ok())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

fn keyed(key: &[u8], purpose: &str, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    // A key may have any length, so this does not fail.
    let mut hash = Hmac::<Sha256>::new_from_slice(key).ok()?;
    // Lengths go before what they count, so no two lists of parts give the same bytes.
    for part in std::iter::once(purpose.as_bytes()).chain(parts.iter().copied()) {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    Some(hash)
}

fn finished(hash: Option<Hmac<Sha256>>) -> [u8; PROOF] {
    hash.map_or([0; PROOF], |hash| hash.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_secret_one_purpose_and_one_list_of_parts() {
        let secret = Secret::new(*b"0123456789abcdef").unwrap();
        let other = Secret::new(*b"0123456789abcdeg").unwrap();
        let proof = secret.proof("host", &[b"ab", b"c"]);
        assert!(secret.admits(&proof, "host", &[b"ab", b"c"]));
        assert!(!secret.admits(&proof, "host", &[b"a", b"bc"]));
        assert!(!secret.admits(&proof, "member", &[b"ab", b"c"]));
        assert!(!other.admits(&proof, "host", &[b"ab", b"c"]));
        assert!(!format!("{secret:?}").contains("0123"));
    }

    #[test]
    fn a_short_secret_is_refused() {
        let error = Secret::new(*b"hunter2").unwrap_err().to_string();
        assert!(error.contains("7 bytes") && error.contains("WARPWEFT_SECRET"), "{error}");
    }
}
