//! Which processes share a machine, and so can reach each other's memory.
//!
//! Law: two processes share a host when their names are equal: machine name and the id of its present boot, or WARPWEFT_HOSTID or
//! NCCL_HOSTID where one is set (in this order). So a test makes two hosts of one, for this library and for NCCL alike.

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
    #[must_use]
    pub fn of_this_process() -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let told = [OWN_HOST, "NCCL_HOSTID"].into_iter().find_map(set);
        Self::new(&told.unwrap_or_else(|| {
            let part = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
            let name = part("/proc/sys/kernel/hostname");
            let boot = part("/proc/sys/kernel/random/boot_id");
            format!("{} {}", name.trim(), boot.trim())
        }))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
