//! Host identity: which processes share a machine, and so can reach each other's memory.
//!
//! Law: two processes share a host when their names are equal: machine name and the id of its present boot,
//! or WARPWEFT_HOSTID or NCCL_HOSTID where one is set (in this order). So a test makes two hosts of one, for
//! this library and for NCCL alike. A variable that is no text is refused by name, not passed over: else some
//! processes would take themselves for another host.

use std::ffi::OsString;
use std::path::Path;

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
    /// [`RendezvousError::Variable`] for a variable that is set and not Unicode; [`RendezvousError::Host`] where no
    /// variable is set and the system does not say which boot this is.
    pub fn of_this_process() -> Result<Self, RendezvousError> {
        let told = Self::told(|name| std::env::var_os(name))?;
        told.map_or_else(|| Self::of_this_boot(Path::new("/proc/sys/kernel")), Ok)
    }

    /// The name of the machine and of its present boot, as `kernel` tells them. The boot alone tells machines
    /// apart; without it every machine would have the same name, and be taken for one.
    fn of_this_boot(kernel: &Path) -> Result<Self, RendezvousError> {
        let part = |name: &str| {
            std::fs::read(kernel.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        let told = part("random/boot_id").map_err(|error| error.to_string());
        let boot =
            told.and_then(|boot| if boot.is_empty() { Err("it is empty".to_owned()) } else { Ok(boot) });
        let path = || kernel.join("random/boot_id").display().to_string();
        let boot = boot.map_err(|reason| RendezvousError::Host { path: path(), reason })?;
        Ok(Self::new(&format!("{} {boot}", part("hostname").unwrap_or_default())))
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

    #[test]
    fn machines_that_do_not_tell_their_boot_are_not_taken_for_one() {
        let kernel = tempfile::tempdir().unwrap();
        let name = || HostName::of_this_boot(kernel.path());
        let refused = || name().unwrap_err().to_string();
        assert!(refused().contains("boot_id") && refused().contains(OWN_HOST), "{}", refused());
        std::fs::create_dir(kernel.path().join("random")).unwrap();
        let boot = |text: &str| std::fs::write(kernel.path().join("random/boot_id"), text).unwrap();
        boot("\n");
        assert!(refused().contains("empty"), "{}", refused());
        boot("0123-4567\n");
        assert_eq!(name(), Ok(HostName::new(" 0123-4567")), "a boot is enough");
        std::fs::write(kernel.path().join("hostname"), "node\n").unwrap();
        assert_eq!(name(), Ok(HostName::new("node 0123-4567")));
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
