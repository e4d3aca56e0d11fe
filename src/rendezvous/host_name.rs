//! Which processes share a machine, and so can reach each other's memory.
//!
//! Law: two processes share a host when their names are equal: machine name and the id of its present boot,
//! or WARPWEFT_HOSTID or NCCL_HOSTID where one is set (in this order). So a test makes two hosts of one, for
//! this library and for NCCL alike. A variable that is no text is refused by name, not passed over: else some
//! processes would take themselves for another host.

use std::ffi::OsString;

use super::RendezvousError;
use super::environment::refuse_noise;

/// Tells hosts apart, before NCCL's own variable does.
pub(super) const OWN_HOST: &str = "WARPWEFT_HOSTID";

/// The name of a host, at most 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// Bytes of a name.
const MOST: usize = 256;

impl HostName {
    /// A host of this name, cut to 256 bytes.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut end = name.len().min(MOST);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Self(name[..end].to_owned())
    }

    /// The host this process runs on.
    ///
    /// # Errors
    /// [`RendezvousError::Variable`] for a variable that is set and not Unicode.
    pub fn of_this_process() -> Result<Self, RendezvousError> {
        let told = Self::told(|name| std::env::var_os(name))?;
        Ok(told.unwrap_or_else(|| {
            // The boot tells hosts apart whose names lose something here.
            let part = |path: &str| {
                String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).trim().to_owned()
            };
            let (name, boot) = (part("/proc/sys/kernel/hostname"), part("/proc/sys/kernel/random/boot_id"));
            Self::new(&format!("{name} {boot}"))
        }))
    }

    /// The name a variable gives, if one is set.
    fn told(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, RendezvousError> {
        for name in [OWN_HOST, "NCCL_HOSTID"] {
            let value = variable(name);
            refuse_noise(name, value.as_deref())?;
            if let Some(text) =
                value.as_deref().and_then(|value| value.to_str()).filter(|text| !text.is_empty())
            {
                return Ok(Some(Self::new(text)));
            }
        }
        Ok(None)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_names_the_host() {
        let told = |own: &str, nccl: &str| {
            HostName::told(|name| Some(OsString::from(if name == OWN_HOST { own } else { nccl }))).unwrap()
        };
        assert_eq!(told("a", "b"), Some(HostName::new("a")));
        assert_eq!(told("", "b"), Some(HostName::new("b")));
        assert_eq!(told("", ""), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;

        let noise = |wanted: &'static str| {
            move |name: &str| (name == wanted).then(|| OsString::from_vec(vec![b'a', 0xff]))
        };
        for wanted in [OWN_HOST, "NCCL_HOSTID"] {
            let error = HostName::told(noise(wanted)).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("Unicode"), "{error}");
        }
    }
}
