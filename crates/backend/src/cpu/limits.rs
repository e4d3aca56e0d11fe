//! Limits of threads and memory: what a world takes against what the system allows this process.
//!
//! Law: ranks that take more than the system says it has are refused before anything is reserved for them. A
//! thread that the system starts and then denies its stack ends the process, and so does memory that was
//! promised and is not there when it is used. That there is no refusal promises nothing: what ranks take is the
//! least they may, what the system does not say limits nothing, and memory that a group has used is not
//! subtracted, for it includes caches of files, which give way.

use std::iter::successors;

use super::super::BackendError;
use super::stream::STACK;
use warpweft_plan::policy::ByteSize;

/// Parts of the address space of a thread, each of which the system counts: its stack, the one on which an overflow is
/// reported, and the guard of either.
const MAPS_OF_A_THREAD: usize = 4;

/// Parts of the address space that the process itself has, at most: its program, libraries and heap.
const MAPS_OF_THE_PROCESS: usize = 1024;

/// Bytes of memory that a thread uses of its stack, and the system for it.
const BYTES_OF_A_THREAD: usize = 64 << 10;

/// The least of some limits, and which it is.
type Limit = Option<(usize, &'static str)>;

/// What this process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    threads: Limit,
    bytes: Limit,
    /// Bytes of the address space, which whole stacks take part of.
    addresses: Limit,
}

impl Limits {
    /// What the system says now.
    pub(super) fn of_this_process() -> Self {
        Self::read(|path| std::fs::read_to_string(path).ok())
    }

    /// What the files of the system say, of which there may be any.
    fn read(file: impl Fn(&str) -> Option<String>) -> Self {
        let number = |path: &str| file(path)?.trim().parse::<usize>().ok();
        let of_line = |path: &str, word: &str| {
            let text = file(path)?;
            let rest = text.lines().find_map(|line| line.strip_prefix(word))?;
            rest.split_whitespace().next()?.parse::<usize>().ok()
        };
        // The least that is left in the groups that the process is in and in all around them, as the two versions of
        // the system name them.
        let of_groups = |controller: &str, [unified, own]: [&str; 2], taken: Option<&str>| {
            let least_of = |line: &str| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, group) = rest.split_once(':')?;
                let (root, limit) = match controllers {
                    "" => ("/sys/fs/cgroup".to_owned(), unified),
                    _ if controllers.split(',').any(|other| other == controller) => {
                        (format!("/sys/fs/cgroup/{controller}"), own)
                    }
                    _ => return None,
                };
                let around =
                    successors(Some(group.trim_end_matches('/')), |group| Some(group.rsplit_once('/')?.0));
                let left = around.filter_map(|group| {
                    let taken = taken.and_then(|taken| number(&format!("{root}{group}/{taken}")));
                    Some(number(&format!("{root}{group}/{limit}"))?.saturating_sub(taken.unwrap_or(0)))
                });
                left.min()
            };
            file("/proc/self/cgroup")?.lines().filter_map(least_of).min()
        };
        // The system holds root to no number of processes.
        let effective = |line: &str| Some(line.strip_prefix("Uid:")?.split_whitespace().nth(1)? == "0");
        let is_root = file("/proc/self/status").and_then(|text| text.lines().find_map(effective));
        let processes = match is_root {
            Some(true) => None,
            _ => of_line("/proc/self/limits", "Max processes"),
        };
        let maps = number("/proc/sys/vm/max_map_count");
        let maps = maps.map(|maps| maps.saturating_sub(MAPS_OF_THE_PROCESS) / MAPS_OF_A_THREAD);
        let threads = [
            (maps, "vm.max_map_count"),
            (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
            (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
            (processes, "ulimit -u"),
            (of_groups("pids", ["pids.max"; 2], Some("pids.current")), "what is left of a cgroup's pids.max"),
        ];
        let free = of_line("/proc/meminfo", "MemAvailable:").map(|kib| {
            kib.saturating_add(of_line("/proc/meminfo", "SwapFree:").unwrap_or(0)).saturating_mul(1024)
        });
        let bytes = [
            (free, "free memory"),
            (of_groups("memory", ["memory.max", "memory.limit_in_bytes"], None), "a cgroup's memory"),
        ];
        let mapped = of_line("/proc/self/status", "VmSize:").unwrap_or(0).saturating_mul(1024);
        let addresses = of_line("/proc/self/limits", "Max address space");
        let addresses = addresses.map(|most| (most.saturating_sub(mapped), "what is left of ulimit -v"));
        Self { threads: least(&threads), bytes: least(&bytes), addresses }
    }

    /// Refuses ranks of `lanes` lanes and `bytes` bytes each, if the system would.
    pub(super) fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), BackendError> {
        // That of the rank, and one for each of its lanes.
        let threads = ranks.saturating_mul(lanes.saturating_add(1));
        let with_threads =
            |each: usize| ranks.saturating_mul(bytes).saturating_add(threads.saturating_mul(each));
        let (bytes, addresses) = (with_threads(BYTES_OF_A_THREAD), with_threads(STACK));
        let is_over = |needed: usize, limit: Limit| limit.filter(|(most, _)| needed > *most);
        let refused = |bytes: usize, limit: String| {
            let needed = ByteSize::of(bytes).in_full();
            Err(BackendError::Room { ranks, needed: format!("{threads} threads and {needed}"), limit })
        };
        if let Some((most, name)) = is_over(threads, self.threads) {
            return refused(bytes, format!("{most} threads ({name})"));
        }
        for (needed, limit) in [(bytes, self.bytes), (addresses, self.addresses)] {
            if let Some((most, name)) = is_over(needed, limit) {
                return refused(needed, format!("{} ({name})", ByteSize::of(most).in_full()));
            }
        }
        Ok(())
    }
}

fn least(limits: &[(Option<usize>, &'static str)]) -> Limit {
    let known = limits.iter().filter_map(|(limit, name)| Some(((*limit)?, *name)));
    known.min_by_key(|(limit, _)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIDS: &str = "what is left of a cgroup's pids.max";

    fn read(files: &[(&str, &str)]) -> Limits {
        let found =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        Limits::read(found)
    }

    fn refusal(limits: Limits, ranks: usize, lanes: usize, bytes: usize) -> String {
        limits.admit(ranks, lanes, bytes).unwrap_err().to_string()
    }

    #[test]
    fn ranks_are_refused_by_the_least_of_all_limits_with_what_they_would_take() {
        let limits = read(&[
            ("/proc/sys/vm/max_map_count", "65530\n"),
            ("/proc/sys/kernel/threads-max", "190000\n"),
            ("/proc/sys/kernel/pid_max", "32768\n"),
            (
                "/proc/self/limits",
                "Max address space         unlimited            unlimited            bytes\nMax processes  96365  96365  processes\n",
            ),
            ("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    1048576 kB\nSwapFree:   0 kB\n"),
        ]);
        assert_eq!(limits.threads, Some((16_126, "vm.max_map_count")));
        assert!(limits.admit(2_000, 5, 1 << 10).is_ok());
        let said = refusal(limits, 65_536, 5, 0);
        assert!(said.contains("65536 ranks") && said.contains("393216 threads"), "{said}");
        assert!(said.contains("16126 threads (vm.max_map_count)"), "{said}");
        let said = refusal(limits, 100, 5, 1 << 30);
        assert!(said.contains("600 threads and") && said.contains("(free memory)"), "{said}");
    }

    #[test]
    fn limits_of_a_group_of_either_version_count_and_what_is_not_told_limits_nothing() {
        let unified = [
            ("/proc/self/cgroup", "0::/own\n"),
            ("/sys/fs/cgroup/own/pids.max", "100\n"),
            ("/sys/fs/cgroup/own/memory.max", "max\n"),
        ];
        let limits = read(&unified);
        assert_eq!((limits.threads, limits.bytes), (Some((100, PIDS)), None));
        let before = [
            ("/proc/self/cgroup", "4:memory:/own\n8:cpu,pids:/\n"),
            ("/sys/fs/cgroup/memory/own/memory.limit_in_bytes", "4096\n"),
        ];
        let limits = read(&before);
        assert_eq!((limits.threads, limits.bytes), (None, Some((4096, "a cgroup's memory"))));
        assert!(read(&[]).admit(usize::MAX, usize::MAX, usize::MAX).is_ok());
    }

    /// As systemd sets them, on slices.
    #[test]
    fn groups_around_the_own_one_limit_as_well_by_what_is_left_in_them() {
        let unified = [
            ("/proc/self/cgroup", "0::/user.slice/of.slice/own.scope\n"),
            ("/sys/fs/cgroup/user.slice/of.slice/own.scope/pids.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/of.slice/pids.max", "900\n"),
            ("/sys/fs/cgroup/user.slice/of.slice/pids.current", "500\n"),
            ("/sys/fs/cgroup/user.slice/pids.max", "500\n"),
            ("/sys/fs/cgroup/user.slice/pids.current", "7\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "8192\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "8000\n"),
            ("/sys/fs/cgroup/memory.max", "16384\n"),
        ];
        let limits = read(&unified);
        assert_eq!((limits.threads, limits.bytes), (Some((400, PIDS)), Some((8192, "a cgroup's memory"))));
        let before = [
            ("/proc/self/cgroup", "8:pids:/outer/own\n"),
            ("/sys/fs/cgroup/pids/outer/pids.max", "3\n"),
            ("/sys/fs/cgroup/pids/outer/pids.current", "9\n"),
        ];
        assert_eq!(read(&before).threads, Some((0, PIDS)));
    }

    #[test]
    fn whole_stacks_count_against_addresses_and_root_may_have_any_number_of_processes() {
        const LIMITS: &str =
            "Max address space  1073741824  unlimited  bytes\nMax processes  8  8  processes\n";
        let of = |status| read(&[("/proc/self/limits", LIMITS), ("/proc/self/status", status)]);
        let root = of("Uid:\t1000\t0\t0\t0\nVmSize:\t  524288 kB\n");
        assert_eq!(root.threads, None);
        // 512 MiB are left, for as many stacks as there are threads.
        assert!(root.admit(512, 1, 0).is_ok());
        let said = refusal(root, 513, 1, 0);
        assert!(said.contains("1026 threads and 537919488 bytes") && said.contains("ulimit -v"), "{said}");
        let other = of("Uid:\t0\t1000\t0\t0\n");
        assert_eq!(other.threads, Some((8, "ulimit -u")));
    }
}
