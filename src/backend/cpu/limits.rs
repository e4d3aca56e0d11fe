//! What the threads and the memory of a world take, against what the system lets this process have.
//!
//! Law: ranks that cannot start are refused before anything is reserved for them. A thread that the system starts and
//! then denies its stack ends the process, and so does memory that was promised and is not there when it is used. What
//! the system does not tell limits nothing: then a start fails as its first lane or arena does.

use super::super::BackendError;
use crate::config::ByteSize;

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
        // Of the groups that the process is in, as the two versions of the system name them.
        let of_group = |unified: &str, controller: &str, own: &str| {
            let groups = file("/proc/self/cgroup")?;
            let limits = groups.lines().filter_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, group) = rest.split_once(':')?;
                let group = group.trim_end_matches('/');
                match controllers {
                    "" => number(&format!("/sys/fs/cgroup{group}/{unified}")),
                    _ if controllers.split(',').any(|other| other == controller) => {
                        number(&format!("/sys/fs/cgroup/{controller}{group}/{own}"))
                    }
                    _ => None,
                }
            });
            limits.min()
        };
        let maps = number("/proc/sys/vm/max_map_count");
        let maps = maps.map(|maps| maps.saturating_sub(MAPS_OF_THE_PROCESS) / MAPS_OF_A_THREAD);
        let threads = [
            (maps, "vm.max_map_count"),
            (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
            (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
            (of_line("/proc/self/limits", "Max processes"), "ulimit -u"),
            (of_group("pids.max", "pids", "pids.max"), "the cgroup's pids.max"),
        ];
        let free = of_line("/proc/meminfo", "MemAvailable:").map(|kib| {
            kib.saturating_add(of_line("/proc/meminfo", "SwapFree:").unwrap_or(0)).saturating_mul(1024)
        });
        let bytes = [
            (free, "free memory"),
            (of_line("/proc/self/limits", "Max address space"), "ulimit -v"),
            (of_group("memory.max", "memory", "memory.limit_in_bytes"), "the cgroup's memory"),
        ];
        Self { threads: least(&threads), bytes: least(&bytes) }
    }

    /// Refuses ranks of `lanes` lanes and `bytes` bytes each, if the system would.
    pub(super) fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), BackendError> {
        // That of the rank, and one for each of its lanes.
        let threads = ranks.saturating_mul(lanes.saturating_add(1));
        let bytes = ranks.saturating_mul(bytes).saturating_add(threads.saturating_mul(BYTES_OF_A_THREAD));
        let is_over = |needed: usize, limit: Limit| limit.filter(|(most, _)| needed > *most);
        let refused = |limit: String| {
            let needed = ByteSize::of(bytes).in_full();
            Err(BackendError::Room { ranks, needed: format!("{threads} threads and {needed}"), limit })
        };
        if let Some((most, name)) = is_over(threads, self.threads) {
            return refused(format!("{most} threads ({name})"));
        }
        match is_over(bytes, self.bytes) {
            Some((most, name)) => refused(format!("{} ({name})", ByteSize::of(most).in_full())),
            None => Ok(()),
        }
    }
}

fn least(limits: &[(Option<usize>, &'static str)]) -> Limit {
    let known = limits.iter().filter_map(|(limit, name)| Some(((*limit)?, *name)));
    known.min_by_key(|(limit, _)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(read(&unified), Limits { threads: Some((100, "the cgroup's pids.max")), bytes: None });
        let before = [
            ("/proc/self/cgroup", "4:memory:/own\n8:cpu,pids:/\n"),
            ("/sys/fs/cgroup/memory/own/memory.limit_in_bytes", "4096\n"),
        ];
        assert_eq!(read(&before), Limits { threads: None, bytes: Some((4096, "the cgroup's memory")) });
        assert!(read(&[]).admit(usize::MAX, usize::MAX, usize::MAX).is_ok());
    }
}
