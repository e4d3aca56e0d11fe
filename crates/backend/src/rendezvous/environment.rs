//! Rank and address from a launcher's environment variables (torchrun, Slurm, MPI).
//!
//! Law: what is set is read or refused by name; nothing is guessed but the defaults written here. torchrun
//! and starting by hand set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; mpirun
//! sets OMPI_COMM_WORLD_*, srun SLURM_*, beside which MASTER_ADDR and MASTER_PORT are the user's. What these
//! launchers call a rank is a process here: it may own several ranks.

use std::ffi::OsStr;

use super::RendezvousError;
use warpweft_base::id::ProcessId;

/// The port to meet at, where a launcher's is not free.
pub(super) const OWN_PORT: &str = "WARPWEFT_PORT";

/// Who set the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// torchrun, or somebody by hand: RANK.
    Torchrun,
    /// Open MPI's mpirun: OMPI_COMM_WORLD_RANK.
    Mpirun,
    /// SLURM's srun: SLURM_PROCID of a job step.
    Srun,
}

/// One process among those of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEnvironment {
    /// Which one.
    pub process: ProcessId,
    /// How many there are.
    pub processes: u32,
    /// Its number among those of its host, from 0: by custom that of its GPU.
    pub local: u32,
    /// How many its host has, where the launcher says so.
    pub locals: Option<u32>,
    /// Host name or address of the process of rank 0.
    pub address: String,
    /// Where that process listens.
    pub port: u16,
    /// Who said so.
    pub launcher: Launcher,
}

/// PyTorch's default as well.
const USUAL_PORT: u16 = 29_500;

struct Names {
    launcher: Launcher,
    process: &'static str,
    processes: &'static str,
    local: &'static str,
    locals: Option<&'static str>,
}

const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    process: "RANK",
    processes: "WORLD_SIZE",
    local: "LOCAL_RANK",
    locals: Some("LOCAL_WORLD_SIZE"),
};

const MPIRUN: Names = Names {
    launcher: Launcher::Mpirun,
    process: "OMPI_COMM_WORLD_RANK",
    processes: "OMPI_COMM_WORLD_SIZE",
    local: "OMPI_COMM_WORLD_LOCAL_RANK",
    locals: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
};

const SRUN: Names = Names {
    launcher: Launcher::Srun,
    process: "SLURM_PROCID",
    processes: "SLURM_STEP_NUM_TASKS",
    local: "SLURM_LOCALID",
    locals: None,
};

const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Every variable that is read.
const READ: [&str; 15] = [
    TORCHRUN.process,
    TORCHRUN.processes,
    TORCHRUN.local,
    "LOCAL_WORLD_SIZE",
    MPIRUN.process,
    MPIRUN.processes,
    MPIRUN.local,
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    SRUN.process,
    SRUN.processes,
    SRUN.local,
    MASTER_ADDR,
    MASTER_PORT,
    OWN_PORT,
    AGENT_STORE,
];

/// A value that is no text is not taken for one that is not set.
pub(super) fn refuse_noise(name: &'static str, value: Option<&OsStr>) -> Result<(), RendezvousError> {
    match value {
        Some(value) if value.to_str().is_none() => Err(RendezvousError::Variable {
            name,
            value: value.to_string_lossy().into_owned(),
            expected: "Unicode text".to_owned(),
        }),
        _ => Ok(()),
    }
}

impl ProcessEnvironment {
    /// What this process was given; `None` if no launcher started it.
    ///
    /// # Errors
    /// [`RendezvousError::Missing`] and [`RendezvousError::Variable`], with the variable's name; the latter
    /// also for one that is not Unicode.
    pub fn of_this_process() -> Result<Option<Self>, RendezvousError> {
        READ.into_iter().try_for_each(|name| refuse_noise(name, std::env::var_os(name).as_deref()))?;
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// As [`ProcessEnvironment::of_this_process`], with variables looked up by `variable`.
    ///
    /// The port is WARPWEFT_PORT, or MASTER_PORT (29500 if not set). Under torchrun whose agent keeps its own
    /// store at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE is True) it is the port after that.
    ///
    /// # Errors
    /// As [`ProcessEnvironment::of_this_process`].
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, RendezvousError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let names = if set(TORCHRUN.process).is_some() {
            TORCHRUN
        } else if set(MPIRUN.process).is_some() {
            MPIRUN
        } else if set(SRUN.process).is_some() && set(SRUN.processes).is_some() {
            // A batch script has SLURM_PROCID too, but is no step and has no peers.
            SRUN
        } else {
            return Ok(None);
        };
        let number = |name: &'static str| -> Result<u32, RendezvousError> {
            let advice = "launchers set it (torchrun, mpirun, srun); by hand, set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT";
            let value = set(name).ok_or(RendezvousError::Missing { name, advice })?;
            let counts = name == names.processes || Some(name) == names.locals;
            let (least, most) = if counts { (1, MOST_PROCESSES) } else { (0, MOST_PROCESSES - 1) };
            parsed(name, &value, &format!("a whole number from {least} to {most}"))
        };
        let processes = number(names.processes)?;
        if !(1..=MOST_PROCESSES).contains(&processes) {
            let expected = format!("a whole number from 1 to {MOST_PROCESSES}");
            return Err(RendezvousError::Variable {
                name: names.processes,
                value: processes.to_string(),
                expected,
            });
        }
        let process = below(names.process, number(names.process)?, names.processes, processes)?;
        let local = number(names.local)?;
        let locals = match names.locals.filter(|name| set(name).is_some()) {
            None => None,
            Some(name) => {
                let locals = number(name)?;
                below(names.local, local, name, locals)?;
                Some(locals)
            }
        };
        let address = match set(MASTER_ADDR) {
            Some(address) => address.trim().to_owned(),
            // All on one host, or nobody else to meet.
            None if processes == 1 || locals == Some(processes) => "127.0.0.1".to_owned(),
            None => {
                let advice = "it is the host name or address of the process with number 0";
                return Err(RendezvousError::Missing { name: MASTER_ADDR, advice });
            }
        };
        let port = port(&set)?;
        let process = ProcessId::new(process);
        Ok(Some(Self { process, processes, local, locals, address, port, launcher: names.launcher }))
    }

    /// Address and port as people write them.
    #[must_use]
    pub fn place(&self) -> String {
        if self.address.contains(':') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }
}

/// A mesh has no more ranks than this, so a world no more processes.
pub(super) const MOST_PROCESSES: u32 = 65_536;

fn port(set: &impl Fn(&str) -> Option<String>) -> Result<u16, RendezvousError> {
    const PORT: &str = "a port from 1 to 65535";
    let read = |name: &'static str| set(name).map(|value| parsed::<u16>(name, &value, PORT)).transpose();
    let valid = |name, port: u16| {
        let refusal =
            || RendezvousError::Variable { name, value: port.to_string(), expected: PORT.to_owned() };
        if port == 0 { Err(refusal()) } else { Ok(port) }
    };
    if let Some(own) = read(OWN_PORT)? {
        return valid(OWN_PORT, own);
    }
    let port = valid(MASTER_PORT, read(MASTER_PORT)?.unwrap_or(USUAL_PORT))?;
    let taken = set(AGENT_STORE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    Ok(if taken { port.checked_add(1).unwrap_or(port - 1) } else { port })
}

fn parsed<T: std::str::FromStr>(
    name: &'static str,
    value: &str,
    expected: &str,
) -> Result<T, RendezvousError> {
    let refusal =
        || RendezvousError::Variable { name, value: value.to_owned(), expected: expected.to_owned() };
    value.trim().parse().map_err(|_| refusal())
}

fn below(name: &'static str, value: u32, of: &str, limit: u32) -> Result<u32, RendezvousError> {
    if value < limit {
        return Ok(value);
    }
    let expected = format!("below {of}, which is {limit}");
    Err(RendezvousError::Variable { name, value: value.to_string(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<ProcessEnvironment>, RendezvousError> {
        let find = |name: &str| variables.iter().find(|(other, _)| *other == name);
        ProcessEnvironment::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    const TORCH: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "1234"),
    ];

    #[test]
    fn every_launcher_is_understood() {
        let found = read(&TORCH).unwrap().unwrap();
        let expected = ProcessEnvironment {
            process: ProcessId::new(3),
            processes: 4,
            local: 1,
            locals: Some(2),
            address: "node0".into(),
            port: 1234,
            launcher: Launcher::Torchrun,
        };
        assert_eq!(found, expected);
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let found = read(&mpi).unwrap().unwrap();
        assert_eq!((found.launcher, found.process.number()), (Launcher::Mpirun, 1));
        assert_eq!(found.place(), "127.0.0.1:29500", "all on one host: nothing else is needed");
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("MASTER_ADDR", "::1"),
        ];
        let found = read(&slurm).unwrap().unwrap();
        assert_eq!((found.launcher, found.local, found.locals), (Launcher::Srun, 1, None));
        assert_eq!(found.place(), "[::1]:29500");
        let alone = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_LOCALID", "0")];
        assert_eq!(read(&alone).unwrap().unwrap().processes, 1, "one process has nobody to meet");
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[("SLURM_PROCID", "0")]).unwrap(), None, "a batch script has no peers");
    }

    #[test]
    fn every_variable_that_is_looked_at_is_checked_for_text() {
        let requested = std::cell::RefCell::new(std::collections::BTreeSet::new());
        for launcher in [TORCHRUN, MPIRUN, SRUN] {
            let found = ProcessEnvironment::from_variables(|name| {
                requested.borrow_mut().insert(name.to_owned());
                let names =
                    [Some(launcher.process), Some(launcher.processes), Some(launcher.local), launcher.locals];
                let is_number = names.contains(&Some(name));
                is_number
                    .then(|| {
                        if name == launcher.process || name == launcher.local { "0" } else { "1" }.to_owned()
                    })
                    .or_else(|| (name == MASTER_ADDR).then(|| "here".to_owned()))
            });
            assert_eq!(found.unwrap().unwrap().launcher, launcher.launcher);
        }
        assert_eq!(requested.into_inner(), READ.map(str::to_owned).into());
    }

    /// A process that took such a RANK for none would train alone.
    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_refused() {
        let noise = std::os::unix::ffi::OsStrExt::from_bytes(b"3\xff");
        let error = refuse_noise("RANK", Some(noise)).unwrap_err().to_string();
        assert!(error.starts_with("RANK is") && error.contains("Unicode"), "{error}");
        assert_eq!(refuse_noise("RANK", Some(OsStr::new("3"))), Ok(()));
        assert_eq!(refuse_noise("RANK", None), Ok(()));
    }

    #[test]
    fn an_error_names_the_variable() {
        for (name, value, part) in [
            ("RANK", "4", "below WORLD_SIZE, which is 4"),
            ("RANK", "-1", "a whole number"),
            ("RANK", "4294967296", "a whole number from 0 to 65535"),
            ("WORLD_SIZE", "0", "from 1 to"),
            ("WORLD_SIZE", "4294967296", "a whole number from 1 to 65536"),
            ("WORLD_SIZE", "", "is not set"),
            ("LOCAL_RANK", "2", "below LOCAL_WORLD_SIZE, which is 2"),
            ("LOCAL_RANK", "", "is not set"),
            ("LOCAL_WORLD_SIZE", "two", "a whole number"),
            ("MASTER_ADDR", "", "is not set"),
            ("MASTER_PORT", "0", "a port"),
            ("MASTER_PORT", "65536", "a port"),
        ] {
            let changed = TORCH.map(|(other, old)| (other, if other == name { value } else { old }));
            let error = read(&changed).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_port_stays_clear_of_the_store_of_torchrun() {
        let with = |extra: &[(&str, &str)]| read(&[&TORCH, extra].concat()).unwrap().unwrap().port;
        assert_eq!(with(&[]), 1234);
        assert_eq!(with(&[("TORCHELASTIC_USE_AGENT_STORE", "True")]), 1235);
        assert_eq!(with(&[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("WARPWEFT_PORT", "7000")]), 7000);
    }
}
